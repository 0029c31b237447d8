"""The page itself: from a spec to an Estimate, on a model small enough to trace in a test."""

from __future__ import annotations

from typing import Any

import pytest

from planner import estimate
from planner.evaluate import calls_of

TINY = {
    "model_type": "gpt_neox", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 64,
}  # fmt: skip


def spec(**changes: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": {"config": TINY},
        "data": {"sequence_length": 64, "total": "1000 steps"},
        "training": {"micro_batch": 2},
        "hardware": {"gpu": "h200-sxm"},
    }
    for part, values in changes.items():
        asked[part] = {**asked[part], **values}
    return asked


@pytest.fixture(scope="module")
def answer() -> Any:
    return estimate(spec())


def test_every_part_of_the_answer_is_there(answer: Any) -> None:
    assert answer.verdict == "fits"
    assert answer.parameters == answer.trainable_parameters > 0
    assert answer.step.seconds >= answer.step.floor_seconds > 0
    assert answer.step.low_seconds <= answer.step.seconds <= answer.step.high_seconds
    assert answer.memory.low_bytes <= answer.memory.device_bytes <= answer.memory.high_bytes
    assert answer.memory.peak_allocated_bytes <= answer.memory.peak_reserved_bytes
    assert answer.run.steps == 1000


def test_days_are_steps_times_seconds(answer: Any) -> None:
    assert answer.run.days == pytest.approx(1000 * answer.step.seconds / 86_400)
    assert answer.run.gpu_hours == pytest.approx(answer.run.days * 24)


def test_the_categories_add_up_to_about_the_peak(answer: Any) -> None:
    total = sum(answer.memory.by_category.values())
    assert total == pytest.approx(answer.memory.peak_allocated_bytes, rel=0.02)


def test_weights_and_states_are_what_adamw_keeps_in_fp32(answer: Any) -> None:
    assert answer.memory.by_category["weights"] == 4 * answer.parameters
    assert answer.memory.by_category["optimizer"] >= 8 * answer.parameters


def test_the_same_question_has_the_same_answer(answer: Any) -> None:
    assert estimate(spec()).model_dump_json() == answer.model_dump_json()


def test_a_price_in_the_spec_is_used(answer: Any) -> None:
    priced = estimate(spec(hardware={"price": {"usd_per_gpu_hour": 2.0}}))
    assert priced.run is not None
    assert priced.run.cost_usd == pytest.approx(2.0 * answer.run.gpu_hours)
    assert priced.run.cost_source == "price given in the spec"


def test_more_samples_take_more_time_and_memory(answer: Any) -> None:
    larger = estimate(spec(training={"micro_batch": 8}))
    assert larger.step is not None
    assert larger.memory.peak_allocated_bytes > answer.memory.peak_allocated_bytes
    assert larger.step.seconds >= answer.step.seconds


def test_a_memory_limit_below_the_need_does_not_fit() -> None:
    assert estimate(spec(hardware={"memory_limit": "2 MiB"})).verdict == "does-not-fit"


def test_calls_of_a_spec_are_each_given_once() -> None:
    calls = calls_of(spec())
    assert len(calls) == len(set(calls)) > 40
    assert not any(tf32 for _, tf32 in calls)
