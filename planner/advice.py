"""Advice: changes that would make a step shorter, each answered by the changed spec itself, never by a guess.

`ADVICE` is the whole list. A change is tried where its condition holds, and shown where its step is shorter by more
than what two answers differ by anyway. All keep what a step trains on: the global batch stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from catalog.accelerator import Accelerator
from catalog.errors import RigplanError
from catalog.store import find
from planner import machine as machines
from planner.answer import Estimate
from planner.cache import Workloads
from planner.evaluate import evaluate, knobs_of
from planner.explanation import Advice, TimeRow, best
from planner.money import charged
from planner.outcome import batches_at
from planner.padding import padded_vocabulary, padded_widths
from planner.question import Combination, How
from planner.search import Progress, outcomes
from planner.spec import Spec
from planner.strategy import HardwareChoice, Strategy

SHOWN_ABOVE = 0.005  # of the step: less is within what the estimate itself is good for
FUSED = ("adamw", "adam", "sgd")
FULL_PRECISION = ("fp32", "tf32")
USUALLY_BEST = ("precision", "attention", "compile")

When = Callable[[Strategy, Accelerator], bool]


@dataclass(frozen=True, slots=True)
class Change:
    """Knobs to set. With `micro_batch: None` the micro-batch is searched anew; what fits and is fastest is taken."""

    why: str
    costs: str
    fields: Mapping[str, Any]
    when: When


@dataclass(frozen=True, slots=True)
class ModelChange:
    """Another model: `apply` gives the changed spec, the change as the spec has it, and why; None where it is none."""

    costs: str
    apply: Callable[[Spec], tuple[Spec, str, str] | None]


@dataclass(frozen=True, slots=True)
class TraceChange:
    """Another call in the model's own code, tried where the step has `kind` operators with this flag of their shape."""

    change: str
    why: str
    costs: str
    kind: str
    flag: str
    knobs: Mapping[str, Any]


Item = Change | ModelChange | TraceChange
Pair = tuple[Advice, Item]

ADVICE: tuple[Item, ...] = (
    Change(
        "matrix units do not work in fp32",
        "products with 10 bits of mantissa",
        {"precision": "tf32"},
        lambda strategy, gpu: strategy.precision == "fp32" and bool(gpu.peak_flop_per_s.get("tf32")),
    ),
    Change(
        "half the bytes, and the fastest matrix units",
        "activations in 16 bits",
        {"precision": "bf16-mixed"},
        lambda strategy, gpu: strategy.precision in FULL_PRECISION and bool(gpu.peak_flop_per_s.get("bf16")),
    ),
    Change(
        "half the bytes, and the fastest matrix units",
        "activations in 16 bits, scaled losses",
        {"precision": "fp16-mixed"},
        lambda strategy, gpu: strategy.precision in FULL_PRECISION and not gpu.peak_flop_per_s.get("bf16"),
    ),
    Change(
        "one kernel instead of a matrix of scores",
        "nothing",
        {"attention": "sdpa"},
        lambda strategy, _: strategy.attention == "eager",
    ),
    Change(
        "fewer and larger kernels for the same global batch",
        "memory",
        {"micro_batch": None},
        lambda strategy, _: (strategy.accumulation or 1) > 1,
    ),
    Change(
        "no second forward",
        "memory",
        {"checkpointing": "none", "micro_batch": None},
        lambda strategy, _: strategy.checkpointing != "none",
    ),
    Change(
        "matrix products are kept, not computed again",
        "memory",
        {"checkpointing": "selective", "micro_batch": None},
        lambda strategy, _: strategy.checkpointing == "full",
    ),
    Change(
        "one kernel reads each parameter once",
        "nothing",
        {"optimizer_implementation": "fused"},
        lambda strategy, _: strategy.optimizer_implementation != "fused" and strategy.optimizer in FUSED,
    ),
    Change(
        "one kernel for many parameters",
        "nothing",
        {"optimizer_implementation": "foreach"},
        lambda strategy, _: strategy.optimizer_implementation == "for-loop" and strategy.optimizer not in FUSED,
    ),
    Change(
        "kernels that follow each other become one",
        "compiling at the start",
        {"compile": True},
        lambda strategy, _: not strategy.compile,
    ),
    Change(
        "gradients alone are sent",
        "memory",
        {"sharding": "none"},
        lambda strategy, _: strategy.sharding != "none",
    ),
    Change(
        "weights are gathered once a step, not twice",
        "memory",
        {"sharding": "fsdp-grad-op"},
        lambda strategy, _: strategy.sharding == "fsdp",
    ),
    Change(
        "weights are gathered inside a node",
        "memory",
        {"sharding": "hsdp"},
        lambda strategy, _: strategy.sharding == "fsdp",
    ),
    Change(
        "no sums between ranks inside a layer",
        "memory",
        {"tensor_parallel": 1},
        lambda strategy, _: strategy.tensor_parallel > 1,
    ),
    Change(
        "nothing waits for the host's memory",
        "memory",
        {"offload": "none"},
        lambda strategy, _: strategy.offload != "none",
    ),
    TraceChange(
        "no attn_mask, or is_causal=True",
        "the mask hides nothing else",
        "nothing",
        kind="attention",
        flag="mask",
        knobs={"drop_masks": True},
    ),
    ModelChange("rows that no token uses", padded_vocabulary),
    ModelChange("a slightly larger model", padded_widths),
)


def advise(
    spec: Spec,
    found: Estimate,
    combination: Combination,
    rows: Sequence[TimeRow],
    *,
    profile: str = "",
    progress: Progress | None = None,
) -> tuple[list[Advice], Advice | None]:
    """What would help the combination of `found` with these rows of time, best first, and the best of it together.

    Where it does not fit, what would make it fit.
    """
    if found.verdict == "does-not-fit":
        return _that_fits(spec, found, combination, profile, progress), None
    strategy, choice = combination
    gpu = find(choice.gpu)
    changes = [item for item in ADVICE if isinstance(item, Change) and item.when(strategy, gpu)]
    changed = [(_with(strategy, item.fields), choice) for item in changes]
    told = progress or (lambda _: None)
    told("what would help: answering the spec with each change (--no-advice leaves this out)")
    answers = _answered(spec, [*changed, *_likely_together(changes, strategy, choice)], profile, progress)[
        : len(changed)
    ]
    pairs: list[Pair] = [
        (_advice(_as_written(item.fields, found, answer), _sets(item), item.why, item.costs, found, answer), item)
        for item, answer in zip(changes, answers, strict=True)
        if isinstance(answer, Estimate)
    ]
    for item in ADVICE:
        seen = isinstance(item, TraceChange) and any(row.kind == item.kind and row.shape.get(item.flag) for row in rows)
        if isinstance(item, TraceChange) and seen and not strategy.compile:  # a compiler's masks have no values
            told(f"what would help: {item.change}")
            anew = _traced_anew(spec, strategy, choice, item.knobs, profile, progress)
            pairs.append((_advice(item.change, _sets(item), item.why, item.costs, found, anew), item))
        if isinstance(item, ModelChange) and (other := item.apply(spec)) is not None:
            told(f"what would help: {other[1]}")
            answer = _answered(other[0], [combination], profile, progress)[0]
            if isinstance(answer, Estimate):
                pairs.append((_advice(other[1], _sets(item), other[2], item.costs, found, answer), item))
    pairs = [pair for pair in pairs if _helps(pair[0], found)]
    pairs.sort(key=lambda pair: -pair[0].saved_seconds)
    helping = [advice for advice, _ in pairs]
    named = best(helping)
    told("what would help: the best of these together")
    return helping, _together(spec, found, combination, [pair for pair in pairs if pair[0] in named], profile, progress)


def _likely_together(
    changes: Sequence[Change], strategy: Strategy, choice: HardwareChoice
) -> list[tuple[Strategy, HardwareChoice]]:
    """What will most likely be the best together: it is traced beside the compiled model alone, which takes as long as
    all else, and is at hand when it is asked for. Nothing where that would be no other combination."""
    fields: dict[str, Any] = {}
    for item in changes:
        fields |= {name: value for name, value in item.fields.items() if name in USUALLY_BEST}
    return [(_with(strategy, fields), choice)] if "compile" in fields and len(fields) > 1 else []


def _together(
    spec: Spec,
    found: Estimate,
    combination: Combination,
    taken: Sequence[Pair],
    profile: str,
    progress: Progress | None,
) -> Advice | None:
    """The answer to all of these at once, but for changes of the model's code; None where that is no better."""
    taken = [pair for pair in taken if not isinstance(pair[1], TraceChange)]
    if len(taken) < 2:
        return None
    fields: dict[str, Any] = {}
    for advice, item in taken:
        if isinstance(item, Change):  # with the micro-batch that it has found alone: no search, no traces for one
            found_anew = {"micro_batch": advice.estimate.strategy.micro_batch} if "micro_batch" in item.fields else {}
            fields |= {**item.fields, **found_anew}
        elif isinstance(item, ModelChange) and (other := item.apply(spec)) is not None:
            spec = other[0]
    strategy, choice = combination
    answer = _answered(spec, [(_with(strategy, fields), choice)], profile, progress)[0]
    if not isinstance(answer, Estimate):
        return None
    sets = [name for advice, _ in taken for name in advice.sets]
    costs = ", ".join(dict.fromkeys(advice.costs for advice, _ in taken if advice.costs != "nothing"))
    words = [_as_written(fields, found, answer)] if fields else []
    words += [advice.change for advice, item in taken if isinstance(item, ModelChange)]
    every = _advice(", ".join(words), sets, "all of these together", costs or "nothing", found, answer)
    return every if _helps(every, found) and every.saved_seconds > taken[0][0].saved_seconds else None


def _helps(advice: Advice, found: Estimate) -> bool:
    least = SHOWN_ABOVE * (found.step.seconds if found.step else 0.0)
    return advice.saved_seconds > least and advice.estimate.verdict in ("fits", found.verdict)


def _sets(item: Item) -> list[str]:
    if isinstance(item, ModelChange):
        return [item.apply.__name__.removeprefix("padded_")]
    if isinstance(item, TraceChange):
        return list(item.knobs)
    return [name for name in item.fields if name != "micro_batch" or len(item.fields) == 1]


def _with(strategy: Strategy, fields: Mapping[str, Any]) -> Strategy:
    """With a micro-batch to be searched the accumulation follows, so that the global batch stays."""
    follows: dict[str, Any] = {"accumulation": None} if "micro_batch" in fields else {}
    return replace(strategy, **fields, **follows)


def _answered(
    spec: Spec, combinations: list[Combination], profile: str, progress: Progress | None
) -> list[Estimate | str]:
    """The answers; a change whose model cannot be built or traced has none."""
    try:
        return outcomes(spec, combinations, How(), profile=profile, progress=progress, what="changes")
    except RigplanError as error:
        return [str(error)] * len(combinations)


def _traced_anew(
    spec: Spec,
    strategy: Strategy,
    choice: HardwareChoice,
    changed: Mapping[str, Any],
    profile: str,
    progress: Progress | None,
) -> Estimate:
    """The same combination with other knobs of the trace."""
    machine = machines.resolve(choice, profile)
    batches = batches_at(strategy, machine, strategy.micro_batch or 1)
    knobs = replace(knobs_of(strategy, machine), **changed)
    workload = Workloads(spec.model, spec.data, progress).at(knobs, batches.micro_batch)
    return charged(spec, evaluate(spec, strategy, machine, batches, workload))


def _as_written(fields: Mapping[str, Any], found: Estimate, answer: Estimate) -> str:
    """The change as a spec has it, with the micro-batch that was found where it is another one."""
    words = {key: str(value).lower() for key, value in fields.items() if key != "micro_batch"}
    if answer.strategy.micro_batch != found.strategy.micro_batch or not words:
        words["micro_batch"] = str(answer.strategy.micro_batch)
    return ", ".join(f"{key}: {value}" for key, value in words.items())


def _advice(change: str, sets: list[str], why: str, costs: str, found: Estimate, answer: Estimate) -> Advice:
    before, after = (item.step.seconds if item.step else 0.0 for item in (found, answer))
    return Advice(
        change=change,
        sets=sets,
        why=why,
        costs=costs,
        saved_seconds=before - after,
        saved_bytes=found.memory.peak_reserved_bytes - answer.memory.peak_reserved_bytes,
        estimate=answer,
    )


def _that_fits(
    spec: Spec, found: Estimate, combination: Combination, profile: str, progress: Progress | None
) -> list[Advice]:
    from planner.ladder import climb, only

    rungs = climb(only(spec, *combination), found, profile=profile, progress=progress)
    rungs.sort(key=lambda rung: (not rung.fits, 0 if rung.fits else -rung.saved_bytes))  # of what fits the free first
    return [
        Advice(
            change=rung.change,
            sets=[rung.change],
            why="less memory" if rung.saved_bytes > 0 else "more room",
            costs=rung.price,
            saved_seconds=0.0,
            saved_bytes=rung.saved_bytes,
            estimate=rung.estimate,
        )
        for rung in rungs
    ]


__all__ = ["ADVICE", "advise"]
