"""Laws of several GPUs, from whole answers: what more never raise, what adds up, and what is refused with a fix."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from catalog.errors import RigplanError
from planner import estimate, plan
from planner.answer import Estimate

MODEL = {
    "model_type": "llama", "vocab_size": 1003, "hidden_size": 96, "intermediate_size": 250, "num_hidden_layers": 2,
    "num_attention_heads": 12, "num_key_value_heads": 6,
}  # fmt: skip
COUNTS = [1, 2, 3, 6, 12, 72]  # the last two fill two nodes and nine
SHARDED = ("zero1", "zero2", "fsdp")


def spec(hardware: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    return {
        "model": {"config": MODEL, "task": "causal-lm"},
        "data": {"sequence_length": 64},
        "training": {"micro_batch": 2, **training},
        "hardware": {"gpu": "h200-sxm", **(hardware or {})},
    }


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, int], list[Estimate]]:
    """By sharding and accumulation, from few GPUs to many."""
    found = plan(spec({"count": COUNTS}, accumulation=[1, 3], sharding=["none", *SHARDED]))
    by_way = defaultdict(list)
    for answer in sorted(found.ranked, key=lambda answer: answer.hardware.count):
        by_way[answer.strategy.sharding, answer.strategy.accumulation or 1].append(answer)
    assert set(by_way) == {(sharding, rounds) for sharding in ("none", *SHARDED) for rounds in (1, 3)}
    return by_way


def test_more_gpus_never_raise_the_memory_of_one_that_is_sharded(
    answers: dict[tuple[str, int], list[Estimate]],
) -> None:
    for (sharding, _), row in answers.items():
        peaks = [answer.memory.peak_allocated_bytes for answer in row if answer.hardware.count > 1]
        assert peaks == sorted(peaks, reverse=True), sharding
        if sharding == "none":
            assert len(set(peaks)) == 1


def test_batches_add_up_on_any_number_of_gpus(answers: dict[tuple[str, int], list[Estimate]]) -> None:
    for (_, rounds), row in answers.items():
        for answer in row:
            assert answer.strategy.global_batch == 2 * rounds * answer.hardware.count


def test_what_is_exposed_is_part_of_all_communication(answers: dict[tuple[str, int], list[Estimate]]) -> None:
    for row in answers.values():
        for answer in row:
            assert answer.step is not None
            assert 0 <= answer.step.exposed_communication_seconds <= answer.step.communication_seconds
            assert (answer.step.communication_seconds > 0) == (answer.hardware.count > 1)
            assert answer.step.seconds >= answer.step.floor_seconds


def test_no_number_of_gpus_is_faster_than_ideal(answers: dict[tuple[str, int], list[Estimate]]) -> None:
    for rounds in (1, 3):
        alone, *several = answers["none", rounds]
        assert alone.throughput is not None
        for answer in several:
            assert answer.throughput is not None
            ideal = answer.hardware.count * alone.throughput.samples_per_second
            assert answer.throughput.samples_per_second <= ideal


@pytest.mark.parametrize(
    ("training", "hardware", "reason"),
    [
        ({"tensor_parallel": 3}, {"count": 4}, "tensor_parallel 3 does not divide 4 GPUs; use 1 or 2 or 4"),
        ({"tensor_parallel": 16}, {"count": 16}, "must stay inside one; use 1 or 2 or 4 or 8"),
        ({"tensor_parallel": 8}, {"count": 8}, "num_attention_heads 12 does not divide by tensor_parallel 8; use"),
        ({"tensor_parallel": 4}, {"count": 4}, "num_key_value_heads 6 does not divide by tensor_parallel 4; use"),
        ({"tensor_parallel": 2, "sharding": "zero2"}, {"count": 4}, "use fsdp, or tensor_parallel 1"),
        ({"sharding": "hsdp"}, {"count": 4}, "here is one node; use fsdp"),
        ({"sharding": "hsdp"}, {"count": 9}, "9 GPUs do not divide over 2; use a multiple of 2, or fsdp"),
        ({"offload": "optimizer"}, {"count": 2}, "sharding none has no offload optimizer; zero1 or zero2 or zero3 has"),
        ({"sharding": "zero1", "optimizer": "adafactor"}, {"count": 2}, "or sgd or lion, or zero1: deepspeed"),
        ({"compile": True, "sharding": "zero3"}, {"count": 2}, "use sharding: fsdp, whose blocks stay whole"),
        ({"global_batch": 7}, {"count": 2}, "4 or 8 would"),
        ({"sharding": "fsdp", "precision": "fp16"}, {"count": 2}, "use fp16-mixed"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_can(
    training: dict[str, Any], hardware: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RigplanError) as refused:
        estimate(spec(hardware, **training))
    assert reason in str(refused.value)
