"""The answer: its names are a promise to everything that reads them."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from planner.answer import (
    Estimate,
    Excluded,
    HardwareUsed,
    Memory,
    Plan,
    Run,
    Step,
    StrategyUsed,
    Throughput,
    weakest,
)
from planner.strategy import HardwareChoice, Strategy

PROMISED = {
    Memory: "peak_allocated_bytes peak_reserved_bytes device_bytes usable_bytes low_bytes high_bytes peak_phase "
    "by_category host_bytes known",
    Step: "seconds low_seconds high_seconds forward_seconds backward_seconds optimizer_seconds communication_seconds "
    "exposed_communication_seconds host_bound_share floor_seconds known",
    Throughput: "samples_per_second tokens_per_second_per_gpu mfu",
    Run: "steps days low_days high_days gpu_hours cost_usd cost_source cost_date energy_kwh",
    Estimate: "verdict memory step throughput run strategy hardware parameters trainable_parameters flop_per_step "
    "assumptions unmodelled",
    Excluded: "strategy hardware reason",
    Plan: "ranked excluded pareto",
}


@pytest.mark.parametrize(("part", "names"), PROMISED.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_no_promised_field_is_missing(part: type, names: str) -> None:
    assert set(names.split()) <= set(part.model_fields)  # type: ignore[attr-defined]


def an_estimate() -> Estimate:
    memory = Memory(
        peak_allocated_bytes=20,
        peak_reserved_bytes=22,
        device_bytes=23,
        usable_bytes=79,
        low_bytes=22,
        high_bytes=24,
        peak_phase="backward",
        by_category={"weights": 4, "activations": 16},
        known="prior",
    )
    return Estimate(
        verdict="fits",
        memory=memory,
        strategy=StrategyUsed.of(Strategy(micro_batch=1)),
        hardware=HardwareUsed.of(HardwareChoice("h200-sxm")),
        parameters=1,
        trainable_parameters=1,
        flop_per_step=6.0,
    )


def test_a_plan_survives_json() -> None:
    estimate = an_estimate()
    excluded = Excluded(strategy=estimate.strategy, hardware=estimate.hardware, reason="not today")
    plan = Plan(ranked=[estimate], excluded=[excluded], pareto=[estimate])
    read = Plan.model_validate(json.loads(plan.model_dump_json()))
    assert read == plan
    assert json.loads(plan.model_dump_json())["ranked"][0]["memory"]["by_category"] == {"weights": 4, "activations": 16}


def test_an_answer_cannot_hold_a_word_of_its_own() -> None:
    with pytest.raises(ValidationError, match="'fits', 'borderline' or 'does-not-fit'"):
        Estimate.model_validate(an_estimate().model_dump() | {"verdict": "maybe"})


def test_a_sum_is_known_as_well_as_its_weakest_term() -> None:
    assert weakest("measured", "transferred") == "transferred"
    assert weakest("prior", "measured", "ideal") == "ideal"
    assert weakest("measured") == "measured"
