"""A campaign as text: every fleet with its best packing, which is sooner and which cheaper and why, and the rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from catalog.units import days, usd
from planner.answer import Campaign, Estimate
from planner.report.layout import few_digits, length, listed, table

Packed = tuple[Estimate, Campaign]
COMPARED = 3  # fleets that are told against each other


def section(found: Sequence[Estimate]) -> list[str]:
    """The lines of the fleets, best first as they were ranked; none without a campaign."""
    best = fleets(found)
    if not best:
        return []
    runs = best[0][1].runs
    rows = [
        [
            fleet_name(item),
            str(plan.gpus_per_run),
            str(plan.parallel),
            str(plan.waves),
            _run_days(item),
            length(plan.days),
            few_digits(plan.gpu_hours),
            f"{plan.busy_share:.0%}",
            cost(plan),
        ]
        for item, plan in best
    ]
    headers = ["fleet", "GPUs/run", "at once", "waves", "days/run", "days", "GPU-h", "busy", "cost"]
    lines = ["", f"Campaign of {runs} runs, the best packing of each fleet", table(rows, headers, "lrrrrrrrr")]
    lines += listed("Why", reasons(found)) + activities(*best[0])
    return lines


def fleets(found: Sequence[Estimate]) -> list[Packed]:
    """The first of each fleet in the order given."""
    firsts: dict[tuple[object, ...], Packed] = {}
    for item in found:
        if item.campaign is not None:
            machine = item.hardware
            key = (machine.gpu, machine.fleet, machine.node, machine.usd_per_gpu_hour, machine.price)
            firsts.setdefault(key, (item, item.campaign))
    return list(firsts.values())


def fleet_name(item: Estimate) -> str:
    """``66 x rtx-3090``."""
    return f"{item.hardware.fleet or item.hardware.count} x {item.hardware.gpu}"


def reasons(found: Sequence[Estimate]) -> list[str]:
    """Which fleet finishes sooner and which costs less, and why it is so, beside each of the others."""
    best = fleets(found)
    if len(best) < 2:
        return []
    soonest = min(best, key=lambda pair: pair[1].days)
    priced = [pair for pair in best if pair[1].cost_usd is not None]
    cheapest = min(priced, key=lambda pair: pair[1].cost_usd or 0.0) if priced else None
    lines = [_headline(soonest, cheapest)]
    order = sorted(best, key=lambda pair: pair[1].days)
    lines += [_against(*pair) for pair in combinations(order[:COMPARED], 2)]
    return lines


def _headline(soonest: Packed, cheapest: Packed | None) -> str:
    first = f"{fleet_name(soonest[0])} finishes soonest, in {days(soonest[1].days)}"
    if cheapest is None:
        return f"{first}; no price is known"
    cost = usd(cheapest[1].cost_usd or 0.0)
    if cheapest is soonest:
        return f"{first}, and costs least, {cost}"
    return f"{first}; {fleet_name(cheapest[0])} costs least, {cost} in {days(cheapest[1].days)}"


def _against(best: Packed, other: Packed) -> str:
    """How one fleet compares with another: the speed of a run, how many go at once, the waves, and the price."""
    (item, plan), (item2, plan2) = best, other
    speed = (item2.run.days / item.run.days) if item.run and item2.run else 1.0
    text = (
        f"{fleet_name(item)} against {fleet_name(item2)}: a run goes at {few_digits(speed)} of the other's speed, "
        f"{plan.parallel} against {plan2.parallel} at once, {plan.waves} against {plan2.waves} waves: "
        f"{few_digits(plan2.days / plan.days)} times as fast"
    )
    if plan.high_days > plan2.low_days:
        text += " (their ranges overlap, so the order is not certain)"
    if plan.cost_usd and plan2.cost_usd:
        gpu_price = _usd_a_billed_hour(plan) / _usd_a_billed_hour(plan2)
        text += (
            f", at {few_digits(plan.cost_usd / plan2.cost_usd)} of the cost "
            f"(one GPU costs {few_digits(gpu_price)} of the other)"
        )
    return text


def _usd_a_billed_hour(plan: Campaign) -> float:
    return (plan.cost_usd or 0.0) / (plan.billed_gpu_hours or plan.gpu_hours)


def activities(item: Estimate, plan: Campaign) -> list[str]:
    """The rows of one campaign, with its sum."""
    if len(plan.activities) < 2:
        return []
    rows = [
        [
            row.name,
            str(row.runs or ""),
            f"{row.share:.0%}",
            length(row.days),
            few_digits(row.gpu_hours),
            "?" if row.cost_usd is None else f"{row.cost_usd:,.0f}",
        ]
        for row in plan.activities
    ]
    rows.append(["total", "", "", length(plan.days), few_digits(plan.gpu_hours), cost(plan)])
    title = f"On {fleet_name(item)}"
    lines = ["", title, table(rows, ["activity", "runs", "share", "days", "GPU-h", "cost"], "lrrrrr")]
    return lines + listed("Allowed for without being asked", allowances(plan))


def allowances(plan: Campaign) -> list[str]:
    """Where the allowances come from that the spec does not give."""
    return [f"{row.name}, {row.share:.0%}: {row.source}" for row in plan.activities if row.source]


def _run_days(item: Estimate) -> str:
    return length(item.run.days) if item.run is not None else ""


def cost(plan: Campaign) -> str:
    """USD, else the programme's units, else a question mark."""
    if plan.cost_usd is not None:
        return f"{plan.cost_usd:,.0f} USD"
    return f"{plan.units:,.0f} {plan.unit}" if plan.units is not None else "?"


__all__ = ["activities", "allowances", "cost", "fleet_name", "fleets", "reasons", "section"]
