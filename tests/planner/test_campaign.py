"""Many independent runs packed on a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.answer import Campaign, Estimate
from planner.money import charged
from planner.rank import over_budget, ranked
from planner.report.campaign import reasons, section
from planner.spec import Spec
from planner.strategy import choices
from planner.tariff import HOURS_A_MONTH
from tests.planner.answers import estimate

A100 = {"gpu": "a100-sxm4-80gb", "count": 8, "price": {"usd_per_month": 10_000}}
RTX3090 = {"gpu": "rtx-3090", "count": 66, "price": {"usd_per_month": 10_000}}
H100 = {"gpu": "h100-sxm5-80gb", "count": 4, "price": {"usd_per_month": 10_000}}


def packed(hardware: dict[str, Any], days: float, **campaign: Any) -> Estimate:
    asked = spec(hardware, **campaign)
    _, choice = next(iter(choices(asked)))
    made = estimate(choice.gpu, choice.count, days=days)
    fields = {"price": choice.price, "fleet": choice.fleet, "usd_per_gpu_hour": choice.usd_per_gpu_hour}
    return charged(asked, made.model_copy(update={"hardware": made.hardware.model_copy(update=fields)}))


def spec(hardware: dict[str, Any], **campaign: Any) -> Spec:
    whole = {"runs": 50, "gpus_per_run": 1, "production": 0} | campaign
    return Spec.load(
        {"model": {"name": "marian-big"}, "data": {"total": "1000 steps"}, "hardware": hardware, "campaign": whole}
    )


def plan(found: Estimate) -> Campaign:
    assert found.campaign is not None
    return found.campaign


def test_fifty_runs_go_over_eight_gpus_in_seven_waves() -> None:
    found = plan(packed(A100, days=2))
    assert (found.parallel, found.waves, found.days) == (8, 7, pytest.approx(14))
    assert found.gpu_hours == pytest.approx(50 * 2 * 24)
    assert found.busy_share == pytest.approx(50 / 56)


def test_a_rented_fleet_is_paid_while_it_waits() -> None:
    found = plan(packed(RTX3090, days=10))
    assert found.waves == 1
    assert found.cost_usd == pytest.approx(10_000 * 10 * 24 / HOURS_A_MONTH)
    assert found.billed_gpu_hours == pytest.approx(66 * 240)


def test_hours_are_paid_as_they_are_used() -> None:
    by_hour = {"gpu": "rtx-3090", "count": 66, "price": {"usd_per_gpu_hour": 0.2}}
    assert plan(packed(by_hour, days=10)).cost_usd == pytest.approx(50 * 240 * 0.2)


def test_runs_side_by_side_share_whole_nodes() -> None:
    by_node = {"gpu": "a100-sxm4-80gb", "count": 8, "price": {"usd_per_node_hour": 16}}
    found = plan(packed(by_node, days=1, runs=12, gpus_per_run=1))
    assert found.cost_usd == pytest.approx(2 * 24 * 16)  # a wave of 8 and a wave of 4, a node each


# GNMT training throughput against one A100 SXM4 80GB, fp16: 3090 0.35, H100 SXM5 1.92 (Lambda deeplearning-benchmark)
def test_with_measured_ratios_the_gaming_cards_win_and_the_h100_gains_nothing() -> None:
    a100, rtx, h100 = packed(A100, days=5), packed(RTX3090, days=5 / 0.35), packed(H100, days=5 / 1.92)
    assert ranked([a100, rtx, h100], "time") == [rtx, h100, a100]
    assert ranked([a100, rtx, h100], "cost")[0] is rtx
    assert plan(a100).days / plan(rtx).days == pytest.approx(7 * 0.35)
    assert plan(a100).days / plan(h100).days == pytest.approx(7 * 1.92 / 13)  # 1.03: the same money, the same time


def test_the_reason_is_told_in_numbers() -> None:
    a100, rtx = packed(A100, days=5), packed(RTX3090, days=5 / 0.35)
    first, against = reasons(ranked([a100, rtx], "time"))
    assert first == "66 x rtx-3090 finishes soonest, in 14.3 days, and costs least, 4,693 USD"
    assert "a run goes at 0.35 of the other's speed, 66 against 8 at once, 1 against 7 waves" in against
    assert "2.45 times as fast" in against
    assert "one GPU costs 0.12 of the other" in against


def test_orders_that_the_ranges_leave_open_are_said_to_be_open() -> None:
    a100, h100 = packed(A100, days=5), packed(H100, days=5 / 1.92)
    assert "their ranges overlap, so the order is not certain" in reasons([h100, a100])[1]


def test_pilot_ablation_failures_and_contingency_are_rows_of_their_own() -> None:
    found = plan(
        packed(
            A100, days=10, runs=8, overhead=0.1, production=0.25, failed=0.05, contingency=0.2,
            pilot={"runs": 2, "share": 0.01}, ablation={"runs": 16, "share": 0.25},
        )
    )  # fmt: skip
    rows = {row.name: row for row in found.activities}
    assert list(rows) == ["pilot", "ablation", "final", "production", "failed", "contingency"]
    assert rows["pilot"].days == pytest.approx(0.1 * 1.1)
    assert rows["ablation"].days == pytest.approx(2 * 2.5 * 1.1)
    assert rows["final"].gpu_hours == pytest.approx(8 * 240 * 1.1)
    assert rows["final"].overhead_gpu_hours == pytest.approx(8 * 24)
    run = sum(rows[name].gpu_hours for name in ("pilot", "ablation", "final"))
    assert rows["production"].gpu_hours == pytest.approx(0.25 * run)
    assert rows["failed"].gpu_hours == pytest.approx(0.05 * 1.25 * run)
    assert rows["contingency"].gpu_hours == pytest.approx(0.2 * 1.05 * 1.25 * run)
    assert found.gpu_hours == pytest.approx(1.2 * 1.05 * 1.25 * run)
    assert found.days == pytest.approx(sum(row.days for row in found.activities))
    assert found.cost_usd == pytest.approx(sum(row.cost_usd or 0 for row in found.activities))


def test_long_runs_are_slower_than_benchmarks_unless_it_is_said_otherwise() -> None:
    found = plan(packed(A100, days=2, production=None))  # published: 0.75 to 0.85 of benchmark speed
    final, allowed = found.activities
    assert (allowed.name, allowed.share) == ("production", 0.25)
    assert allowed.gpu_hours == pytest.approx(0.25 * final.gpu_hours)
    assert found.days == pytest.approx(1.25 * 14)
    assert found.cost_usd == pytest.approx(1.25 * (plan(packed(A100, days=2)).cost_usd or 0))
    assert allowed.source is not None
    assert "0.75 to 0.85 of benchmark speed" in allowed.source
    assert [row.name for row in plan(packed(A100, days=2)).activities] == ["final"]


def test_an_overhead_that_is_known_is_part_of_the_allowance() -> None:
    bare = plan(packed(A100, days=2, production=None))
    known = plan(packed(A100, days=2, production=None, overhead=0.1))
    assert known.gpu_hours == pytest.approx(bare.gpu_hours)
    assert [row.name for row in plan(packed(A100, days=2, production=None, overhead=0.3)).activities] == ["final"]


def test_the_source_of_the_allowance_is_printed() -> None:
    shown = " ".join(" ".join(section([packed(A100, days=2, production=None)])).split())
    assert "production, 25%: published long runs reach 0.75 to 0.85 of benchmark speed" in shown
    assert "published long runs" not in " ".join(section([packed(A100, days=2, production=0.25)]))


def test_gpus_a_run_are_tried_where_they_are_left_open() -> None:
    asked = spec(A100, gpus_per_run="auto")
    assert [choice.count for _, choice in choices(asked)] == [1, 2, 4, 8]
    assert {choice.fleet for _, choice in choices(asked)} == {8}
    assert [choice.count for _, choice in choices(spec(A100, gpus_per_run="auto", parallel=2))] == [4]


def test_runs_side_by_side_can_be_held_down() -> None:
    assert plan(packed(A100, days=1, parallel=3)).waves == 17


def test_a_budget_is_held_against_the_whole_campaign() -> None:
    asked = Spec.load(spec(A100).model_dump(mode="json", exclude_none=True) | {"budget": {"days": 30}})
    reason = over_budget(packed(A100, days=5), asked.budget)
    assert reason == "over budget: 35 days is over the 30 days by 5 days"


def test_without_a_campaign_there_is_nothing_to_tell() -> None:
    assert section([estimate()]) == []


def test_the_example_holds_the_fleets_of_its_source(root: Path) -> None:
    asked = Spec.load(root / "examples" / "lingvanex.yaml")
    fleets = {(choice.gpu, choice.fleet): choice.price for _, choice in choices(asked)}
    assert set(fleets) == {("a100-sxm4-80gb", 8), ("rtx-3090", 66), ("h100-sxm5-80gb", 4)}
    assert {price.usd_per_month for price in fleets.values() if price} == {10_000}
