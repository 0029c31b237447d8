"""Ladder: what to change so that it fits, from the free to the dear, each rung a combination of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from catalog import store
from planner.answer import Estimate, Plan
from planner.ladder_beyond import on_another_card, on_more_cards, with_adapters
from planner.question import How
from planner.rung import MEMORY, Asked, Rung
from planner.search import Progress, outcomes
from planner.spec import Spec
from planner.strategy import HardwareChoice, Strategy, choices


@dataclass(frozen=True, slots=True)
class _Step:
    """Knobs to set where `when` holds. Steps that go `together` are combined where none of them is enough alone."""

    price: str
    fields: Mapping[str, Any]
    when: Callable[[Strategy, HardwareChoice], bool] = lambda _strategy, _choice: True
    together: bool = True


# In order of what they cost. A rung that the estimate cannot answer is left out.
STEPS: tuple[_Step, ...] = (
    _Step("nothing", {"allocator": "expandable"}, lambda strategy, _: strategy.allocator != "expandable"),
    _Step("nothing", {"attention": "sdpa"}, lambda strategy, _: strategy.attention == "eager"),
    _Step(
        "smaller kernels; the step trains the same",
        {"micro_batch": None},
        lambda strategy, _: strategy.micro_batch != 1,
    ),
    _Step(
        "some recompute",
        {"checkpointing": "selective"},
        lambda strategy, _: strategy.checkpointing == "none",
        together=False,  # as full is
    ),
    _Step("a second forward", {"checkpointing": "full"}, lambda strategy, _: strategy.checkpointing != "full"),
    _Step(
        "a kernel of Liger's, and the head in chunks",
        {"loss": "fused-linear"},
        lambda strategy, _: strategy.loss == "eager",
    ),
    _Step(
        "less exact matmuls", {"precision": "bf16-mixed"}, lambda strategy, _: strategy.precision in ("fp32", "tf32")
    ),
    _Step("states in 8 bits", {"optimizer": "adamw-8bit"}, lambda strategy, _: strategy.optimizer in ("adamw", "adam")),
    _Step(
        "communication",
        {"sharding": "fsdp"},
        lambda strategy, choice: strategy.sharding == "none" and choice.count > 1,
        together=False,
    ),
    _Step(
        "transfers to the host",
        {"sharding": "fsdp", "offload": "all"},
        lambda strategy, _: strategy.offload == "none",
        together=False,
    ),
    _Step("no fp32 master weights", {"precision": "bf16"}, lambda strategy, _: strategy.precision != "bf16"),
)


def climb(spec: Spec, found: Estimate, *, profile: str = "", progress: Progress | None = None) -> list[Rung]:
    """The rungs for an estimate of a spec that leaves one combination, in order of cost: those that save memory, or
    are enough without. Where no step of the combination itself is, as few of them together as are."""
    asked = Asked.of(spec, found, profile, progress)
    if progress is not None:
        progress("what would save memory")
    steps = [step for step in STEPS if step.when(asked.strategy, asked.choice)]
    alone = _worked_out(asked, [[step] for step in steps])
    singles = [(step, rung) for step, rung in zip(steps, alone, strict=True) if rung is not None]
    rungs = [rung for _, rung in singles]
    joined = [(step, rung) for step, rung in singles if step.together]
    if found.verdict != "fits" and len(joined) > 1 and not any(rung.fits for _, rung in joined):
        rungs += _joined(asked, joined)
    rungs += [*with_adapters(asked), *on_more_cards(asked), *on_another_card(asked)]
    return [rung for rung in rungs if rung.helps(found)]


def _joined(asked: Asked, singles: Sequence[tuple[_Step, Rung]]) -> list[Rung]:
    """As few steps together as fit, from the free to the dear; all of them where that is not enough either.

    One step more never takes more memory, so the shortest part of the list that fits is found by halving; of that,
    what saves nothing alone is left out where the rest is enough, and so is a micro-batch that need not be smaller.
    """
    steps = [step for step, _ in singles]
    (best,) = _worked_out(asked, [steps])
    if best is None or not best.fits:
        return [] if best is None else [best]
    low, high = 1, len(steps)
    while low + 1 < high:
        middle = (low + high) // 2
        (rung,) = _worked_out(asked, [steps[:middle]])
        low, high, best = (low, middle, rung) if rung is not None and rung.fits else (middle, high, best)
    smaller = (best.estimate.strategy.micro_batch or 1) < (asked.strategy.micro_batch or 1)
    needed = [
        step
        for step, rung in singles[:high]
        if rung.helps(asked.found) and (smaller or "micro_batch" not in step.fields)
    ]
    if 1 < len(needed) < high:
        (rung,) = _worked_out(asked, [needed])
        best = rung if rung is not None and rung.fits else best
    return [best]


def nearest(spec: Spec, found: Plan, *, profile: str = "", progress: Progress | None = None) -> str | None:
    """In a line, the plan that works and is nearest to a spec of which nothing does; None when none is known."""
    from planner.rank import over_budget
    from planner.report.plan import name

    combinations = list(choices(spec))
    every = outcomes(spec, combinations, How(), profile=profile, progress=progress)
    fitting = [item for item in every if isinstance(item, Estimate) and item.verdict != "does-not-fit"]
    if fitting and spec.budget is not None:
        budget = spec.budget
        best = min(fitting, key=lambda item: _overrun(item, budget.usd, budget.days))
        return f"nearest to the budget: {name(best)}; {over_budget(best, budget)}"
    tight = [item for item, outcome in zip(combinations, every, strict=True) if _too_large(outcome)]
    if not tight:
        return None
    strategy, choice = max(tight, key=lambda item: _room(*item))
    whole = outcomes(spec, [(strategy, choice)], MEMORY, profile=profile, progress=progress)[0]
    if isinstance(whole, str):
        return None
    rungs = climb(only(spec, strategy, choice), whole, profile=profile, progress=progress)
    rung = next((rung for rung in rungs if rung.fits), None)
    return None if rung is None else f"nearest plan that fits: {name(rung.estimate)} (set {rung.change})"


def _worked_out(asked: Asked, wanted: Sequence[Sequence[_Step]]) -> list[Rung | None]:
    """A rung for each group of steps taken together; None where it cannot be answered."""
    together = [{name: value for step in steps for name, value in step.fields.items()} for steps in wanted]
    answers = asked.tried([(_changed(asked.strategy, fields), asked.choice) for fields in together])
    rungs: list[Rung | None] = []
    for steps, fields, answer in zip(wanted, together, answers, strict=True):
        if answer is None:
            rungs.append(None)
            continue
        words = {**fields, **({"micro_batch": answer.strategy.micro_batch} if "micro_batch" in fields else {})}
        change = ", ".join(f"{key}: {value}" for key, value in words.items())
        rungs.append(asked.rung(change, _price(steps), answer))
    return rungs


def _price(steps: Sequence[_Step]) -> str:
    """What steps cost together, in short."""
    if len(steps) == 1:
        return steps[0].price
    words = dict.fromkeys(step.price.partition(";")[0] for step in steps if step.price != "nothing")
    return "; ".join(words) or "nothing"


def _changed(strategy: Strategy, fields: Mapping[str, Any]) -> Strategy:
    """With a micro-batch to be searched the accumulation follows, so that the global batch stays."""
    follows: dict[str, Any] = {"accumulation": None} if "micro_batch" in fields else {}
    return replace(strategy, **fields, **follows)


def _overrun(item: Estimate, usd: float | None, days: float | None) -> float:
    run = item.run
    if run is None:
        return float("inf")
    shares = [run.days / days if days else 0.0]
    if usd:
        shares.append(float("inf") if run.cost_usd is None else run.cost_usd / usd)
    return max(shares)


def _too_large(outcome: Estimate | str) -> bool:
    return outcome.startswith("does not fit") if isinstance(outcome, str) else outcome.verdict == "does-not-fit"


def _room(strategy: Strategy, choice: HardwareChoice) -> tuple[int, bool, bool]:
    """How near a combination that does not fit is: the larger card, and what is saved already."""
    usable = choice.memory_limit_bytes or store.find(choice.gpu).usable_memory_bytes
    return usable, strategy.checkpointing == "full", strategy.precision not in ("fp32", "tf32")


def only(spec: Spec, strategy: Strategy, choice: HardwareChoice) -> Spec:
    """The spec with its choices narrowed to one combination."""
    training = {name: (getattr(strategy, name),) for name in type(spec.training).model_fields}
    hardware = spec.hardware[0].model_copy(
        update={
            "gpu": (choice.gpu,),
            "count": (choice.count,),
            "gpus_per_node": (choice.gpus_per_node,),
            "node": (choice.node,),
            "memory_limit": (choice.memory_limit_bytes,),
            "host_memory": (choice.host_memory_bytes,),
            "price": (None,),
        }
    )
    return spec.model_copy(
        update={
            "model": spec.model.model_copy(update={"attention": (strategy.attention,)}),
            "training": spec.training.model_copy(update=training),
            "hardware": (hardware,),
        }
    )


__all__ = ["Rung", "climb", "nearest", "only"]
