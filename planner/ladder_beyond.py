"""The last rungs of the ladder: adapters in the place of all weights, more cards of the kind, and another card."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from catalog import price, store
from planner.rung import Asked, Rung
from planner.spec import LoraSpec, ModelSpec
from planner.strategy import HardwareChoice, batch_plan, impossible

LORA = LoraSpec(r=16, alpha=32, target_modules=("all-linear",))
QLORA = LORA.model_copy(update={"quantize": "nf4"})
MORE_CARDS = (2, 4, 8)


def with_adapters(asked: Asked) -> list[Rung]:
    """Adapters on weights as they are, in bf16 and in 4 bits, and the last with blocks computed again where that alone
    is not enough; a spec's own adapter is kept."""
    own, strategy = asked.spec.model.lora, asked.strategy
    whole, packed = (LORA, QLORA) if own is None else (own, own.model_copy(update={"quantize": "nf4"}))
    offers: list[tuple[str, LoraSpec, dict[str, Any]]] = []
    if own is None:
        offers.append(("adapters alone are trained", LORA, {}))
    if whole.quantize is None:
        if own is None and strategy.precision != "bf16":  # with an adapter of its own, precision is a rung above
            offers.append(("adapters on weights in bf16", LORA, {"precision": "bf16"}))
        offers.append(("adapters on weights rounded to 4 bits", packed, {}))
        if strategy.checkpointing != "full":
            offers.append(("the same, and a second forward", packed, {"checkpointing": "full"}))
    rungs: list[Rung] = []
    for cost, lora, knobs in offers:
        if "checkpointing" in knobs and rungs and rungs[-1].fits:
            continue  # 4 bits alone are enough
        model: ModelSpec = asked.spec.model.model_copy(update={"lora": lora})
        tried = asked.tried(
            [(replace(strategy, **knobs), asked.choice)], asked.spec.model_copy(update={"model": model})
        )
        change = ", ".join([_told(lora), *(f"{key}: {value}" for key, value in knobs.items())])
        rungs += [asked.rung(change, cost, answer) for answer in tried if answer is not None]
    return rungs


def on_more_cards(asked: Asked) -> list[Rung]:
    """The fewest cards of this kind, up to a node of 8, that hold everything split; each sees samples of its own, of
    the global batch that the spec gives where that divides."""
    strategy, choice, memory = asked.strategy, asked.choice, asked.found.memory
    if choice.count > 1 or strategy.sharding != "none":
        return []
    split = sum(memory.by_category.get(name, 0) for name in ("weights", "gradients", "optimizer", "temporary"))
    rest = memory.device_bytes - split
    sharded = replace(strategy, sharding="fsdp", global_batch=None)
    whole = replace(sharded, global_batch=strategy.global_batch, accumulation=None)
    for count in MORE_CARDS:
        if rest + split / count > memory.usable_bytes and count < MORE_CARDS[-1]:
            continue  # clearly not enough
        many = replace(choice, count=count)
        divides = strategy.global_batch is not None and not isinstance(batch_plan(whole, many), str)
        (answer,) = asked.tried([(whole if divides else sharded, many)])
        if answer is not None and (answer.verdict == "fits" or count == MORE_CARDS[-1]):
            costs = f"{count} cards; the global batch is {answer.strategy.global_batch}"
            return [asked.rung(f"count: {count}, sharding: fsdp", costs, answer)]
    return []


def on_another_card(asked: Asked) -> list[Rung]:
    """The cheapest card with a price that has room for the whole range as it is."""
    if asked.profile:
        return []
    wanted = max(asked.found.memory.high_bytes, asked.found.memory.usable_bytes + 1)
    able = []
    for card in store.accelerators():
        offer = price.default_offer(card.name)
        plain = HardwareChoice(card.name, asked.choice.count)
        if offer is None or offer.usd_per_gpu_hour is None or card.usable_memory_bytes < wanted:
            continue
        if card.vendor == "NVIDIA" and impossible(asked.strategy, plain, card) is None:
            able.append((offer.usd_per_gpu_hour, card.name, plain))
    for usd, name, plain in sorted(able, key=lambda item: item[:2])[:1]:
        tried = asked.tried([(asked.strategy, plain)])
        return [asked.rung(f"gpu: {name}", f"{usd:.2f} USD an hour each", answer) for answer in tried if answer]
    return []


def _told(lora: LoraSpec) -> str:
    packed = "" if lora.quantize is None else f", quantize: {lora.quantize}"
    targets = ", ".join(lora.target_modules)
    return f"model.lora: {{r: {lora.r}, alpha: {lora.alpha}, target_modules: [{targets}]{packed}}}"


__all__ = ["on_another_card", "on_more_cards", "with_adapters"]
