"""What would help, and how far one can go, on a tiny model."""

from __future__ import annotations

import json
from typing import Any

import pytest

import planner
from planner.answer import Estimate
from planner.ladder import climb, nearest
from planner.limits import furthest_fitting
from planner.spec import Spec
from tests.planner.test_search import spec

TIGHT = {"gpu": "rtx-3090", "memory_limit": "256 MiB"}


def tight(**training: Any) -> Spec:
    return Spec.load(spec({"micro_batch": 64, "precision": "fp32", **training}, TIGHT))


def test_the_rungs_are_estimates_of_their_own_and_tell_what_they_save() -> None:
    found = planner.fits(tight())
    assert isinstance(found, Estimate)
    assert found.verdict == "does-not-fit"
    rungs = {rung.change: rung for rung in climb(tight(), found)}
    full = rungs["checkpointing: full"]
    asked = planner.fits(tight(checkpointing="full"))
    assert isinstance(asked, Estimate)
    assert full.estimate.memory == asked.memory
    assert full.saved_bytes == found.memory.peak_reserved_bytes - asked.memory.peak_reserved_bytes > 0
    smaller = next(rung for change, rung in rungs.items() if change.startswith("micro_batch: "))
    assert smaller.estimate.verdict == "fits"
    assert smaller.estimate.strategy.global_batch == 64
    assert any(change.startswith("gpu: ") for change in rungs)


def test_adapters_are_offered_on_whole_weights_and_on_weights_in_4_bits() -> None:
    llama = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 512,
    }  # fmt: skip
    asked = Spec.load({**spec({"micro_batch": 1}, TIGHT), "model": {"config": llama, "task": "causal-lm"}})
    found = planner.fits(asked)
    assert isinstance(found, Estimate)
    whole, low, packed = [rung for rung in climb(asked, found) if rung.change.startswith("model.lora: ")]
    assert packed.change.endswith("quantize: nf4}")  # which fits: no second forward is offered with it
    assert low.change.endswith("precision: bf16")
    weights = [rung.estimate.memory.by_category["weights"] for rung in (whole, low, packed)]
    assert weights[2] < weights[0]
    assert weights[0] / 2 < weights[1] < 0.6 * weights[0]  # the adapters stay in fp32


def test_the_host_takes_weights_and_states_on_one_gpu_too() -> None:
    found = planner.fits(tight())
    assert isinstance(found, Estimate)
    (rung,) = [rung for rung in climb(tight(), found) if "offload" in rung.change]
    assert rung.change == "sharding: fsdp, offload: all"
    assert rung.estimate.memory.peak_allocated_bytes < found.memory.peak_allocated_bytes
    assert rung.estimate.memory.host_bytes > 0


@pytest.mark.parametrize(
    ("given", "cards", "becomes"), [({}, 2, 2), ({"global_batch": 8}, 4, 8), ({"global_batch": 1}, 2, 2)]
)
def test_as_few_cards_as_hold_everything_split_are_offered(given: dict[str, int], cards: int, becomes: int) -> None:
    """Weights, gradients and states of 16 bytes a parameter: a card that lacks a little needs one more of its kind. The
    global batch of the spec stays where it divides."""
    llama = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2,
        "num_attention_heads": 8, "vocab_size": 512,
    }  # fmt: skip
    hardware = {"gpu": "rtx-3090", "memory_limit": "512 MiB"}
    training = {"micro_batch": 1, **given}
    asked = Spec.load({**spec(training, hardware), "model": {"config": llama, "task": "causal-lm"}})
    found = planner.fits(asked)
    assert isinstance(found, Estimate)
    assert found.verdict == "does-not-fit"
    (rung,) = [rung for rung in climb(asked, found) if rung.change.startswith("count: ")]
    assert (rung.change, rung.price) == (
        f"count: {cards}, sharding: fsdp",
        f"{cards} cards; the global batch is {becomes}",
    )
    assert rung.estimate.verdict == "fits"


def test_where_nothing_fits_the_nearest_plan_that_does_is_named() -> None:
    asked = tight(checkpointing=["none", "full"])
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
