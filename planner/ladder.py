"""Ladder: what to change so that it fits, from the free to the dear, each rung a combination of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from catalog import price, store
from catalog.errors import RigplanError
from planner.answer import Estimate, Plan
from planner.question import How
from planner.search import Progress, outcomes
from planner.spec import LoraSpec, ModelSpec, Spec
from planner.strategy import HardwareChoice, Strategy, batch_plan, choices, impossible

MEMORY = How(timed=False, whole=True)
LORA = LoraSpec(r=16, alpha=32, target_modules=("all-linear",))
MORE_CARDS = (2, 4, 8)
QLORA = LORA.model_copy(update={"quantize": "nf4"})


@dataclass(frozen=True, slots=True)
class Rung:
    """One change, written as the spec has it; what it costs in words; the estimate with it and the bytes it saves."""

    change: str
    price: str
    estimate: Estimate
    saved_bytes: int


@dataclass(frozen=True, slots=True)
class _Step:
    price: str
    fields: Mapping[str, Any]
    when: Callable[[Strategy, HardwareChoice], bool] = lambda _strategy, _choice: True


# In order of what they cost. A rung that the estimate cannot answer is left out.
STEPS: tuple[_Step, ...] = (
    _Step("nothing", {"allocator": "expandable"}),
    _Step("nothing", {"attention": "sdpa"}, lambda strategy, _: strategy.attention == "eager"),
    _Step(
        "smaller kernels; the step trains the same",
        {"micro_batch": None},
        lambda strategy, _: strategy.micro_batch != 1,
    ),
    _Step("some recompute", {"checkpointing": "selective"}, lambda strategy, _: strategy.checkpointing == "none"),
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
        "communication", {"sharding": "fsdp"}, lambda strategy, choice: strategy.sharding == "none" and choice.count > 1
    ),
    _Step(
        "transfers to the host", {"sharding": "fsdp", "offload": "all"}, lambda strategy, _: strategy.offload == "none"
    ),
    _Step("no fp32 master weights", {"precision": "bf16"}, lambda strategy, _: strategy.precision != "bf16"),
)
# Taken together where no single one is enough; all train what the spec trains.
TOGETHER = {
    "micro_batch": None,
    "checkpointing": "full",
    "loss": "fused-linear",  # of the models that can
    "optimizer": "adamw-8bit",
    "allocator": "expandable",
}


def climb(spec: Spec, found: Estimate, *, profile: str = "", progress: Progress | None = None) -> list[Rung]:
    """The rungs for an estimate of a spec that leaves one combination, in order of cost."""
    strategy, choice = next(iter(choices(spec)))
    batches = found.strategy
    strategy = replace(
        strategy, micro_batch=batches.micro_batch, accumulation=batches.accumulation, global_batch=batches.global_batch
    )
    if progress is not None:
        progress("what would save memory")
    wanted = [(step.price, step.fields) for step in STEPS if step.when(strategy, choice)]
    rungs = _worked_out(spec, found, strategy, choice, wanted, profile, progress)
    if not any(rung.estimate.verdict == "fits" for rung in rungs):
        together = {key: value for key, value in TOGETHER.items() if getattr(strategy, key) != value}
        if strategy.optimizer not in ("adamw", "adam"):
            together.pop("optimizer", None)
        if not any(rung.estimate.strategy.loss == "fused-linear" for rung in rungs):
            together.pop("loss", None)
        rungs += _worked_out(spec, found, strategy, choice, [("all of these", together)], profile, progress)
    rungs += _with_lora(spec, found, strategy, choice, profile, progress)
    rungs += _on_more_cards(spec, found, strategy, choice, profile, progress)
    rungs += _on_another_card(spec, found, strategy, choice, profile, progress)
    return rungs


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
    rung = next((rung for rung in rungs if rung.estimate.verdict == "fits"), None)
    return None if rung is None else f"nearest plan that fits: {name(rung.estimate)} (set {rung.change})"


def _worked_out(
    spec: Spec,
    found: Estimate,
    strategy: Strategy,
    choice: HardwareChoice,
    wanted: list[tuple[str, Mapping[str, Any]]],
    profile: str,
    progress: Progress | None,
) -> list[Rung]:
    changed = [_changed(strategy, fields) for _, fields in wanted]
    answers = _tried(spec, [(item, choice) for item in changed], profile, progress)
    rungs = []
    for (cost, fields), answer in zip(wanted, answers, strict=True):
        if answer is not None:
            words = {**fields, **({"micro_batch": answer.strategy.micro_batch} if "micro_batch" in fields else {})}
            change = ", ".join(f"{key}: {value}" for key, value in words.items())
            rungs.append(_rung(change, cost, answer, found))
    return rungs


def _changed(strategy: Strategy, fields: Mapping[str, Any]) -> Strategy:
    """With a micro-batch to be searched the accumulation follows, so that the global batch stays."""
    follows: dict[str, Any] = {"accumulation": None} if "micro_batch" in fields else {}
    return replace(strategy, **fields, **follows)


def _tried(
    spec: Spec, combinations: list[tuple[Strategy, HardwareChoice]], profile: str, progress: Progress | None
) -> list[Estimate | None]:
    """An estimate of each that can be answered: a model that cannot be traced so has no such rung."""
    try:
        answers = outcomes(spec, combinations, MEMORY, profile=profile, progress=progress, what="changes")
    except RigplanError:
        return [None] * len(combinations)
    return [None if isinstance(answer, str) else answer for answer in answers]


def _with_lora(
    spec: Spec, found: Estimate, strategy: Strategy, choice: HardwareChoice, profile: str, progress: Progress | None
) -> list[Rung]:
    """Adapters on weights as they are, in bf16 and in 4 bits, and the last with blocks computed again where that alone
    is not enough; a spec's own adapter is kept."""
    own = spec.model.lora
    whole, packed = (LORA, QLORA) if own is None else (own, own.model_copy(update={"quantize": "nf4"}))
    offers: list[tuple[str, LoraSpec, dict[str, Any]]] = []
    if own is None:
        offers.append(("adapters alone are trained", LORA, {}))
    if whole.quantize is None:
        if own is None and strategy.precision != "bf16":  # with an adapter of its own, precision is a rung above
            offers.append(("adapters on weights in bf16", LORA, {"precision": "bf16"}))
        offers.append(("adapters on weights rounded to 4 bits", packed, {}))
        if strategy.checkpointing != "full":
            offers.append(("that, and a second forward", packed, {"checkpointing": "full"}))
    rungs: list[Rung] = []
    for cost, lora, knobs in offers:
        if "checkpointing" in knobs and rungs and rungs[-1].estimate.verdict == "fits":
            continue  # 4 bits alone are enough
        model: ModelSpec = spec.model.model_copy(update={"lora": lora})
        asked = spec.model_copy(update={"model": model})
        tried = _tried(asked, [(replace(strategy, **knobs), choice)], profile, progress)
        change = ", ".join([_told(lora), *(f"{key}: {value}" for key, value in knobs.items())])
        rungs += [_rung(change, cost, answer, found) for answer in tried if answer is not None]
    return rungs


def _on_more_cards(
    spec: Spec, found: Estimate, strategy: Strategy, choice: HardwareChoice, profile: str, progress: Progress | None
) -> list[Rung]:
    """The fewest cards of this kind, up to a node of 8, that hold everything split; each sees samples of its own, of
    the global batch that the spec gives where that divides."""
    if choice.count > 1 or strategy.sharding != "none":
        return []
    split = sum(found.memory.by_category.get(name, 0) for name in ("weights", "gradients", "optimizer", "temporary"))
    rest = found.memory.device_bytes - split
    sharded = replace(strategy, sharding="fsdp", global_batch=None)
    whole = replace(sharded, global_batch=strategy.global_batch, accumulation=None)
    for count in MORE_CARDS:
        if rest + split / count > found.memory.usable_bytes and count < MORE_CARDS[-1]:
            continue  # clearly not enough
        many = replace(choice, count=count)
        divides = strategy.global_batch is not None and not isinstance(batch_plan(whole, many), str)
        (answer,) = _tried(spec, [(whole if divides else sharded, many)], profile, progress)
        if answer is not None and (answer.verdict == "fits" or count == MORE_CARDS[-1]):
            batch = answer.strategy.global_batch
            return [
                _rung(f"count: {count}, sharding: fsdp", f"{count} cards; the global batch is {batch}", answer, found)
            ]
    return []


def _told(lora: LoraSpec) -> str:
    packed = "" if lora.quantize is None else f", quantize: {lora.quantize}"
    targets = ", ".join(lora.target_modules)
    return f"model.lora: {{r: {lora.r}, alpha: {lora.alpha}, target_modules: [{targets}]{packed}}}"


def _on_another_card(
    spec: Spec, found: Estimate, strategy: Strategy, choice: HardwareChoice, profile: str, progress: Progress | None
) -> list[Rung]:
    """The cheapest card with a price that has room for the whole range as it is."""
    if profile:
        return []
    wanted = max(found.memory.high_bytes, found.memory.usable_bytes + 1)
    able = []
    for card in store.accelerators():
        offer = price.default_offer(card.name)
        plain = HardwareChoice(card.name, choice.count)
        if offer is None or offer.usd_per_gpu_hour is None or card.usable_memory_bytes < wanted:
            continue
        if card.vendor == "NVIDIA" and impossible(strategy, plain, card) is None:
            able.append((offer.usd_per_gpu_hour, card.name, plain))
    for usd, name, plain in sorted(able, key=lambda item: item[:2])[:1]:
        tried = _tried(spec, [(strategy, plain)], profile, progress)
        return [_rung(f"gpu: {name}", f"{usd:.2f} USD an hour each", answer, found) for answer in tried if answer]
    return []


def _rung(change: str, cost: str, answer: Estimate, found: Estimate) -> Rung:
    saved = found.memory.peak_reserved_bytes - answer.memory.peak_reserved_bytes
    return Rung(change, cost, answer, saved)


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
