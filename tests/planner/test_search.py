"""The search on a tiny model: what is ranked, what is out and why, and what is remembered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

import planner
from planner.answer import Estimate, Plan
from planner.report.plan import page
from planner.search import missing_bytes

TINY: Mapping[str, Any] = {
    "config": {"model_type": "gpt2", "n_layer": 1, "n_embd": 64, "n_head": 2, "vocab_size": 1000, "n_positions": 512},
    "task": "causal-lm",
}


def spec(training: Mapping[str, Any] = {}, hardware: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "model": dict(TINY),
        "data": {"sequence_length": 256, "total": "1000 steps"},
        "training": {"micro_batch": 4, **training},
        "hardware": hardware or {"gpu": "rtx-3090"},
        **more,
    }


def test_a_micro_batch_left_open_is_the_largest_that_fits() -> None:
    small = {"gpu": "rtx-3090", "memory_limit": "1 GiB"}
    found = planner.fits(spec({"micro_batch": "auto", "global_batch": 512}, small))
    assert isinstance(found, Estimate)
    chosen = found.strategy.micro_batch
    assert found.verdict == "fits"
    assert found.step is None
    assert found.notes == [f"micro_batch auto: {chosen} is the largest that fits"]
    assert chosen is not None
    assert found.strategy.accumulation == 512 // chosen
    doubled = planner.fits(spec({"micro_batch": 2 * chosen, "global_batch": 512}, small))
    assert isinstance(doubled, Estimate)
    assert doubled.verdict != "fits"


def test_the_micro_batch_of_a_timed_answer_is_no_larger_and_trains_no_slower() -> None:
    small = {"gpu": "rtx-3090", "memory_limit": "1 GiB"}
    largest = planner.fits(spec({"micro_batch": "auto", "global_batch": 512}, small))
    best = planner.estimate(spec({"micro_batch": "auto", "global_batch": 512}, small))
    assert isinstance(largest, Estimate)
    at_largest = planner.estimate(spec({"micro_batch": largest.strategy.micro_batch, "global_batch": 512}, small))
    assert best.strategy.micro_batch is not None
    assert largest.strategy.micro_batch is not None
    assert best.strategy.micro_batch <= largest.strategy.micro_batch
    assert best.step is not None
    assert at_largest.step is not None
    assert best.step.seconds <= at_largest.step.seconds * 1.001
    (note,) = best.notes  # which two were compared, and by what
    took = re.fullmatch(
        r"micro_batch auto: (\d+)(?:, the largest that fits,)? takes ([\d.]+) (us|ms) a sample, "
        r"(\d+)(?:, the largest that fits,)? takes ([\d.]+) \3",
        note,
    )
    assert took is not None, note
    assert int(took[1]) == best.strategy.micro_batch
    assert largest.strategy.micro_batch in (int(took[1]), int(took[4]))
    assert float(took[2]) <= float(took[5])
    assert float(took[2]) == pytest.approx(best.step.seconds / 512 * (1e6 if took[3] == "us" else 1e3), rel=0.01)


def test_a_plan_says_how_the_micro_batch_of_its_first_was_found() -> None:
    small = {"gpu": "rtx-3090", "memory_limit": "1 GiB"}
    found = planner.plan(spec({"micro_batch": "auto", "global_batch": 512}, small))
    assert f"of the first, {found.ranked[0].notes[0]}" in found.notes


def test_what_is_assumed_of_several_numbers_of_gpus_is_told_once() -> None:
    found = planner.plan(spec({}, {"gpu": ["rtx-3090", "h100-sxm5-80gb"], "count": [1, 2, 4]}))
    joined = [line for line in found.assumptions if " GPUs joined as in " in line]
    assert joined == [
        "2 and 4 GPUs joined as in 8x rtx-3090 (pcie4-no-peer)",
        "2 and 4 GPUs joined as in dgx-h100 (nvlink4-nvswitch)",
    ]


def test_a_plan_ranks_every_combination_or_says_why_not() -> None:
    asked = spec(
        {"precision": ["fp32", "bf16-mixed"], "checkpointing": ["none", "full"], "global_batch": 24},
        [{"gpu": "rtx-3090", "count": [1, 2, 4]}, {"gpu": "v100-sxm2-16gb"}],
    )
    found = planner.plan(asked)
    assert len(found.ranked) + len(found.excluded) == 16
    costs = [item.run.cost_usd for item in found.ranked if item.run and item.run.cost_usd is not None]
    assert costs == sorted(costs)
    reasons = {item.reason for item in found.excluded}
    assert any("does not divide over 4 data-parallel ranks x micro-batch 4" in reason for reason in reasons)
    assert any("no bf16 matrix units" in reason for reason in reasons)
    assert {item.hardware.count for item in found.ranked} == {1, 2}
    assert all(item in found.ranked for item in found.pareto)


def test_an_estimate_is_the_row_of_the_plan() -> None:
    asked = {"micro_batch": "auto", "global_batch": 64}
    plan = planner.plan(spec({**asked, "checkpointing": ["none", "full"]}))
    alone = planner.estimate(spec({**asked, "checkpointing": "full"}))
    assert alone in plan.ranked


def test_what_does_not_fit_is_out_with_what_is_missing_and_when() -> None:
    tight = {"gpu": "rtx-3090", "memory_limit": "64 MiB"}
    found = planner.plan(spec({"micro_batch": [64, 128]}, tight))
    assert found.ranked == []
    assert all("does not fit at micro-batch" in item.reason for item in found.excluded)
    assert all("missing, peak in" in item.reason for item in found.excluded)
    alone = planner.fits(spec({"micro_batch": 64}, tight))
    assert isinstance(alone, Estimate)
    assert missing_bytes(alone) > 0


def test_a_budget_excludes_by_how_much_it_is_exceeded() -> None:
    free = planner.plan(spec({"checkpointing": ["none", "full"]}))
    runs = sorted(item.run.days for item in free.ranked if item.run)
    assert len(runs) == 2
    held = planner.plan(spec({"checkpointing": ["none", "full"]}, budget={"days": sum(runs) / 2}))
    assert len(held.ranked) == 1
    assert held.excluded[0].reason.startswith("over budget: ")


def test_several_combinations_make_fits_a_plan() -> None:
    found = planner.fits(spec({"checkpointing": ["none", "full"]}))
    assert isinstance(found, Plan)
    assert all(item.step is None for item in found.ranked)
    assert page(found).startswith("2 of 2 combinations work")


def test_an_estimate_takes_one_combination() -> None:
    with pytest.raises(planner.RigplanError, match="2 combinations; `rigplan plan` ranks them"):
        planner.estimate(spec({"checkpointing": ["none", "full"]}))


def test_a_repeated_question_is_answered_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    first = planner.estimate(spec())
    monkeypatch.setattr("planner.workers.work_out", None)
    assert planner.estimate(spec()) == first


def test_another_total_is_another_question() -> None:
    short, long = spec(), spec()
    long["data"]["total"] = "2000 steps"
    one, two = planner.estimate(short).run, planner.estimate(long).run
    assert one is not None
    assert two is not None
    assert two.days == pytest.approx(2 * one.days)


def test_a_campaign_is_as_many_runs_as_it_says() -> None:
    found = planner.estimate(spec(campaign={"runs": 12, "production": 0}))
    assert found.run is not None
    assert found.campaign is not None
    assert found.campaign.days == pytest.approx(12 * found.run.days)
