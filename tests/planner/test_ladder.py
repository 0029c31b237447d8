"""What would help, and how far one can go, on a tiny model."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

import planner
from planner.answer import Estimate
from planner.ladder import climb, nearest
from planner.ladder_beyond import on_more_cards, with_adapters
from planner.limits import furthest_fitting
from planner.question import Combination
from planner.report.ladder import steps
from planner.rung import Asked, Rung
from planner.spec import Spec
from planner.strategy import Strategy
from tests.planner import answers
from tests.planner.test_search import spec

TIGHT = {"gpu": "rtx-3090", "memory_limit": "256 MiB"}
LLAMA = {"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 512}


def tight(**training: Any) -> Spec:
    return Spec.load(spec({"micro_batch": 64, "precision": "fp32", **training}, TIGHT))


def memory_of(asked: Spec) -> Estimate:
    found = planner.fits(asked)
    assert isinstance(found, Estimate)
    return found


@cache
def climbed() -> dict[str, Rung]:
    return {rung.change: rung for rung in climb(tight(), memory_of(tight()))}


def test_the_rungs_are_estimates_of_their_own_and_tell_what_they_save() -> None:
    found = memory_of(tight())
    assert found.verdict == "does-not-fit"
    full = climbed()["checkpointing: full"]
    asked = memory_of(tight(checkpointing="full"))
    assert full.estimate.memory == asked.memory
    assert full.saved_bytes == found.memory.peak_reserved_bytes - asked.memory.peak_reserved_bytes > 0
    smaller = next(rung for change, rung in climbed().items() if change.startswith("micro_batch: "))
    assert smaller.fits
    assert smaller.estimate.strategy.global_batch == 64
    assert any(change.startswith("gpu: ") for change in climbed())


def test_a_fused_loss_is_offered_with_what_it_saves() -> None:
    rung = climbed()["loss: fused-linear"]
    assert rung.saved_bytes >= 64 * 256 * 1000 * 4  # tokens x vocabulary, in fp32
    assert any("Liger" in words for words in rung.estimate.assumptions)


def test_what_saves_nothing_is_no_rung() -> None:
    """Most of the peak are logits: the states of 115,000 parameters are no part of it that shows."""
    assert "optimizer: adamw-8bit" not in climbed()
    least = 0.005 * memory_of(tight()).memory.peak_reserved_bytes
    assert all(rung.saved_bytes > least for rung in climbed().values() if not rung.fits)


GIB_SAVED = {"checkpointing": 6.0, "loss": 3.0, "precision": 4.0, "optimizer": 2.0, "offload": 15.0}


def arithmetic(monkeypatch: pytest.MonkeyPatch, usable_gib: float) -> tuple[Spec, Estimate]:
    """A spec that needs 20 GiB, of which each knob saves its own share, on a card with so much; nothing is traced."""

    def answered(strategy: Strategy) -> Estimate:
        plain = Strategy(precision="bf16-mixed")
        changed = [name for name in GIB_SAVED if getattr(strategy, name) != getattr(plain, name)]
        needs = 20.0 - sum(GIB_SAVED[name] for name in changed)
        found = answers.estimate(used_gib=needs, verdict="fits" if needs <= usable_gib else "does-not-fit")
        return found.model_copy(update={"memory": answers.memory(needs, usable_gib)})

    def outcomes(_: Spec, combinations: Sequence[Combination], *__: Any, **___: Any) -> list[Estimate]:
        return [answered(strategy) for strategy, _ in combinations]

    monkeypatch.setattr("planner.rung.outcomes", outcomes)
    asked = Spec.load(spec({"micro_batch": 1, "precision": "bf16-mixed"}, {"gpu": "rtx-3090"}))
    found = answered(Strategy(precision="bf16-mixed"))
    return asked, found.model_copy(update={"strategy": answers.strategy(micro_batch=1, accumulation=1, global_batch=1)})


@pytest.mark.parametrize(
    ("usable_gib", "change"),
    [
        (14.5, None),  # checkpointing alone is enough
        (11.5, "checkpointing: full, loss: fused-linear"),
        (9.5, "checkpointing: full, loss: fused-linear, optimizer: adamw-8bit"),
        (5.5, "checkpointing: full, loss: fused-linear, optimizer: adamw-8bit, precision: bf16"),
    ],
)
def test_where_no_knob_is_enough_as_few_together_as_are_from_the_free_to_the_dear(
    usable_gib: float, change: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, found = arithmetic(monkeypatch, usable_gib)
    rungs = [rung for rung in climb(asked, found) if ", " in rung.change and "offload" not in rung.change]
    joined = [rung for rung in rungs if "lora" not in rung.change and "count" not in rung.change]
    assert [(rung.change, rung.fits) for rung in joined] == ([] if change is None else [(change, True)])


def test_the_page_tells_what_is_enough_from_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, found = arithmetic(monkeypatch, 11.5)
    enough, rest = steps(found, climb(asked, found)).split("What saves memory, but is not enough")
    assert enough.strip().startswith("What makes it fit, from the free to the dear")
    assert "checkpointing: full, loss: fused-linear" in enough
    assert "offload: all" in enough
    assert re.search(r"^  checkpointing: full +a second forward .* 2\.5$", rest, re.MULTILINE)  # 20 - 6 of 11.5 GiB
    assert re.search(r"^  optimizer: adamw-8bit .* 6\.5$", rest, re.MULTILINE)


def test_where_all_together_is_not_enough_that_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, found = arithmetic(monkeypatch, 4.0)
    text = steps(found, climb(asked, found))
    assert text.startswith("\nNothing tried makes it fit\n")
    assert "loss: fused-linear" in text


def test_adapters_are_offered_on_whole_weights_and_on_weights_in_4_bits() -> None:
    config = {**LLAMA, "hidden_size": 64, "intermediate_size": 128}
    asked = Spec.load({**spec({"micro_batch": 1}, TIGHT), "model": {"config": config, "task": "causal-lm"}})
    whole, low, packed = with_adapters(Asked.of(asked, memory_of(asked)))
    assert packed.change.endswith("quantize: nf4}")  # which fits: no second forward is offered with it
    assert low.change.endswith("precision: bf16")
    weights = [rung.estimate.memory.by_category["weights"] for rung in (whole, low, packed)]
    assert weights[2] < weights[0]
    assert weights[0] / 2 < weights[1] < 0.6 * weights[0]  # the adapters stay in fp32


@pytest.mark.parametrize(
    ("given", "cards", "becomes"), [({}, 2, 2), ({"global_batch": 8}, 4, 8), ({"global_batch": 1}, 2, 2)]
)
def test_as_few_cards_as_hold_everything_split_are_offered(given: dict[str, int], cards: int, becomes: int) -> None:
    """Weights, gradients and states of 16 bytes a parameter: a card that lacks a little needs one more of its kind. The
    global batch of the spec stays where it divides."""
    config = {**LLAMA, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2}
    hardware = {"gpu": "rtx-3090", "memory_limit": "512 MiB"}
    training = {"micro_batch": 1, **given}
    asked = Spec.load({**spec(training, hardware), "model": {"config": config, "task": "causal-lm"}})
    found = memory_of(asked)
    assert found.verdict == "does-not-fit"
    (rung,) = on_more_cards(Asked.of(asked, found))
    assert (rung.change, rung.price) == (
        f"count: {cards}, sharding: fsdp",
        f"{cards} cards; the global batch is {becomes}",
    )
    assert rung.fits


def test_where_nothing_fits_the_nearest_plan_that_does_is_named() -> None:
    asked = tight(checkpointing=["none", "selective"])
    found = planner.plan(asked)
    assert found.ranked == []
    line = nearest(asked, found)
    assert line is not None
    assert line.startswith("nearest plan that fits: 1 x rtx-3090, fp32, sdpa, micro-batch ")


def test_where_nothing_is_within_the_budget_the_nearest_to_it_is_named() -> None:
    asked = Spec.load(spec({"checkpointing": ["none", "full"]}, budget={"days": 1e-6}))
    line = nearest(asked, planner.plan(asked))
    assert line is not None
    assert line.startswith("nearest to the budget: 1 x rtx-3090")
    assert "no checkpointing" in line


def test_the_largest_micro_batch_fits_and_the_next_does_not() -> None:
    limit = furthest_fitting(tight(), "micro-batch")
    assert limit.value is not None
    assert limit.too_large == limit.value + 1
    verdicts = [planner.fits(tight(micro_batch=size)) for size in (limit.value, limit.value + 1)]
    assert [item.verdict == "fits" for item in verdicts if isinstance(item, Estimate)] == [True, False]
    assert json.loads(limit.to_json())["value"] == limit.value
    assert limit.beyond is not None
    assert limit.beyond.verdict != "fits"
    assert f"; {limit.too_large} " in limit.text
    assert "micro-batch: " + str(limit.value) + " fits (" in limit.text


@pytest.mark.parametrize("what", ["micro-batch", "sequence-length"])
def test_where_not_even_the_least_fits_what_it_needs_is_told(what: str) -> None:
    asked = Spec.load(spec({"precision": "fp32"}, {"gpu": "rtx-3090", "memory_limit": "4 MiB"}))
    limit = furthest_fitting(asked, what)
    assert (limit.value, limit.estimate) == (None, None)
    least = {"micro-batch": 1, "sequence-length": 64}[what]
    assert limit.text.startswith(f"{what}: not even {least} fits: ")
    assert "GiB, peak in " in limit.text


def test_a_model_of_one_length_is_searched_from_there() -> None:
    """Whisper takes spectrograms of one length only, which is no multiple of the grain."""
    whisper = {
        "model_type": "whisper", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 64,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
        "num_mel_bins": 8, "max_source_positions": 256, "max_target_positions": 32, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    }  # fmt: skip
    asked = {**spec({"micro_batch": 1}), "model": {"config": whisper}, "data": {"target_length": 8}}
    limit = furthest_fitting(Spec.load(asked), "sequence-length")
    assert limit.value == 512  # half of the 1,024 that are tried first
    assert limit.reason.endswith("whisper takes exactly 512")


def test_the_longest_sequence_ends_where_the_model_does() -> None:
    limit = furthest_fitting(Spec.load(spec()), "sequence-length")
    assert limit.value == 512
    assert "512 positions" in limit.reason


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"name": "resnet-50"}, "resnet-50 reads images"),
        ({"name": "vit-mae-base"}, "vit-mae-base reads images"),
        ({"config": {"model_type": "vit"}, "task": "image-classification"}, "the model reads images"),
        (
            {
                "config": {
                    "model_type": "vit",
                    "hidden_size": 16,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "intermediate_size": 16,
                }
            },
            "the model reads images",
        ),
        ({"module": "examples/models/unet.py:make"}, "factory of a module decides"),
    ],
)
def test_what_has_no_sequence_has_no_longest_one(model: dict[str, Any], reason: str) -> None:
    with pytest.raises(planner.RigplanError, match=reason):
        furthest_fitting(Spec.load({"model": model, "hardware": {"gpu": "rtx-3090"}}), "sequence-length")


def test_a_limit_is_asked_of_one_combination() -> None:
    with pytest.raises(planner.RigplanError, match="--max takes one combination"):
        furthest_fitting(tight(checkpointing=["none", "full"]), "micro-batch")
