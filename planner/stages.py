"""Stages: one machine three ways side by side: naive, with what costs nothing, and the best of a plan.

The words are those of "$100K or 100 Days" (arXiv 2410.23261): naive is data parallel with eager attention, without
TF32, checkpointing, sharding or offload; the free lunch is compilation, fused attention and TF32; the best is the
fastest of the combinations that save memory, or the free lunch where none of them is faster. Micro-batches are searched
at each stage, where the spec gives none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner import machine as machines
from planner.answer import Estimate, HardwareUsed, Plan, Stages
from planner.question import Combination, How, by_model
from planner.search import Progress, missing, naming, outcomes
from planner.spec import Spec
from planner.strategy import FUSED, HardwareChoice, Strategy, choices

NO_COMPILE = "without compilation"


def naive(strategy: Strategy) -> Strategy:
    """The strategy with nothing that makes it faster or smaller."""
    precision = "fp32" if strategy.precision == "tf32" else strategy.precision
    return replace(
        strategy,
        precision=precision,
        attention="eager",
        optimizer_implementation="foreach",
        checkpointing="none",
        sharding="none",
        tensor_parallel=1,
        offload="none",
        compile=False,
        micro_batch=None,
        accumulation=None,
    )


def free_lunch(strategy: Strategy) -> Strategy:
    """The naive strategy with what changes neither result nor memory for the worse."""
    plain = naive(strategy)
    return replace(
        plain,
        precision="tf32" if plain.precision == "fp32" else plain.precision,
        attention="sdpa",
        optimizer_implementation="fused" if plain.optimizer in FUSED else plain.optimizer_implementation,
        compile=True,
    )


def staged(spec: Spec, found: Plan, *, profile: str = "", progress: Progress | None = None) -> list[Stages]:
    """The three stages of each model and machine of a plan; those of the spec's first precision and optimizer."""
    return [
        stages
        for one in by_model(spec)
        for model in [one.model.name if spec.models else None]
        for stages in _of_model(one, found, model, profile, naming(progress, model))
    ]


def _of_model(spec: Spec, found: Plan, model: str | None, profile: str, progress: Progress | None) -> Iterator[Stages]:
    first: dict[HardwareChoice, Strategy] = {}
    for strategy, choice in choices(spec):
        first.setdefault(choice, strategy)
    ways = (naive, free_lunch, lambda strategy: replace(free_lunch(strategy), compile=False))
    asked: list[Combination] = [
        (replace(way(strategy), micro_batch=strategy.micro_batch), choice)
        for choice, strategy in first.items()
        for way in ways
    ]
    told = iter(outcomes(spec, asked, How(), profile=profile, progress=progress))
    for choice in first:
        plain, compiled, eager = (_fitting(next(told)) for _ in ways)
        names = {HardwareUsed.of(choice), HardwareUsed.of(machines.resolve(choice, profile).choice)}
        yield _of(found, model, names, HardwareUsed.of(choice), plain, compiled, eager)


def _fitting(outcome: Estimate | str) -> Estimate | str:
    return missing(outcome) if isinstance(outcome, Estimate) and outcome.verdict == "does-not-fit" else outcome


def _of(
    found: Plan,
    model: str | None,
    names: set[HardwareUsed],
    hardware: HardwareUsed,
    plain: Estimate | str,
    compiled: Estimate | str,
    eager: Estimate | str,
) -> Stages:
    here = [item for item in found.ranked if item.hardware in names and item.model == model]
    out = [item for item in found.excluded if item.hardware in names and item.model == model]
    reasons = {}
    lunch = compiled
    if isinstance(compiled, str):
        lunch = eager
        reasons["free_lunch"] = f"{NO_COMPILE}: {compiled}"
    for name, outcome in (("naive", plain), ("free_lunch", lunch)):
        if isinstance(outcome, str):
            reasons[name] = outcome
    found_too = [] if isinstance(lunch, str) else [lunch]
    best = min([*here, *found_too], key=seconds_a_sample, default=None)
    if best is None:
        reasons["best"] = "no combination of the plan fits, nor does the free lunch"
    return Stages(
        model=model,
        hardware=hardware,
        naive=None if isinstance(plain, str) else plain,
        free_lunch=None if isinstance(lunch, str) else lunch,
        best=best,
        tried=len(here) + len(out),
        fitting=len(here),
        reasons=reasons,
    )


def seconds_a_sample(item: Estimate) -> float:
    """What stages of one machine are compared by: their global batches may differ."""
    if item.step is None or not item.strategy.global_batch:
        raise ValueError("an answer without step time has no stage")
    return item.step.seconds / item.strategy.global_batch


__all__ = ["free_lunch", "naive", "seconds_a_sample", "staged"]
