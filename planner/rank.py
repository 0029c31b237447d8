"""Rank: the order of a plan's estimates, its front of days against USD, and what a budget leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from catalog.units import days, usd
from planner.answer import Campaign, Estimate, Run
from planner.money_spec import BudgetSpec
from planner.spec import Spec

Key = tuple[float, ...]

# What a plan that may not fit has to save, in USD or days, to stand before one that fits: less is not worth the risk.
RISK = 0.05


def ranked(estimates: Sequence[Estimate], objective: str) -> list[Estimate]:
    """Best first. Equal ones keep the order of the spec; without a price they come last, by time. By cost and by time a
    borderline plan stands where one that fits would stand for RISK more."""
    front = {id(item) for item in pareto(estimates)} if objective == "pareto" else set()
    orders: dict[str, Callable[[Estimate], Key]] = {
        "cost": lambda item: (*_cost(item, _risk(item)), _time(item)),
        "time": lambda item: (_risk(item) * _time(item), *_cost(item)),
        "amount": lambda item: (-_amount(item), *_cost(item)),
        "model": lambda item: (-item.parameters, *_cost(item), _time(item)),
        "pareto": lambda item: (float(id(item) not in front), _time(item), *_cost(item)),
    }
    return sorted(estimates, key=orders[objective])


def pareto(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Those that no other beats in both time and cost, fastest first; a machine without a price is not on the front."""
    front: list[Estimate] = []
    least = float("inf")
    for item in sorted(
        (item for item in estimates if _cost(item)[0] == 0), key=lambda item: (_time(item), _cost(item))
    ):
        if _cost(item)[1] < least:
            least = _cost(item)[1]
            front.append(item)
    return front


def over_budget(estimate: Estimate, budget: BudgetSpec | None) -> str | None:
    """By how much an estimate is over a budget; None within it, or where there is no run to hold against it."""
    run: Run | Campaign | None = estimate.campaign or estimate.run
    if budget is None or run is None:
        return None
    said, most_days = [], budget.most_days
    if most_days is not None and run.days > most_days:
        until = f" until {budget.deadline}" if budget.deadline is not None and most_days != budget.days else ""
        limit = _limit(most_days)
        said.append(f"{days(run.days)} is over the {limit}{until} by {days(run.days - most_days)}")
    if budget.usd is not None and run.cost_usd is None:
        said.append(f"its cost is not known, so it cannot be held to {usd(budget.usd)}")
    elif budget.usd is not None and run.cost_usd is not None and run.cost_usd > budget.usd:
        said.append(f"{usd(run.cost_usd)} is over the {usd(budget.usd)} by {usd(run.cost_usd - budget.usd)}")
    return f"over budget: {' and '.join(said)}" if said else None


def _limit(most_days: float) -> str:
    """A limit of time as it was most likely written: whole days as days, else as lengths are."""
    return f"{most_days:g} day{'' if most_days == 1 else 's'}" if most_days == int(most_days) else days(most_days)


def question(spec: Spec) -> str:
    """What the first of the ranked is, in words: `the cheapest that finishes in 30 days`."""
    first = {
        "cost": "the cheapest",
        "time": "the fastest",
        "pareto": "the fastest on the front",
        "amount": "the most training",
        "model": "the largest model",
    }[spec.objective]
    budget = spec.budget
    if budget is None:
        return first
    if spec.objective == "amount":
        limits = [f"{usd(budget.usd)}" if budget.usd else "", _limit(budget.most_days) if budget.most_days else ""]
        return f"{first} for {' and '.join(filter(None, limits))}"
    days_said = f"that finishes in {_limit(budget.most_days)}" if budget.most_days is not None else ""
    usd_said = f"under {usd(budget.usd)}" if budget.usd is not None else ""
    return " ".join(filter(None, (first, days_said, "and" if days_said and usd_said else "", usd_said)))


def _time(item: Estimate) -> float:
    """Days of the campaign, or of the run; without one, seconds a sample, which orders alike."""
    if item.campaign is not None:
        return item.campaign.days
    if item.run is not None:
        return item.run.days
    if item.step is not None and item.strategy.global_batch:
        return item.step.seconds / item.strategy.global_batch
    return float(item.memory.device_bytes)


def _cost(item: Estimate, risk: float = 1.0) -> tuple[float, float]:
    """(0, USD) where a price is known; (1, units) where only a programme's units are; else (2, 0)."""
    run: Run | Campaign | None = item.campaign or item.run
    if run is None or (run.cost_usd is None and run.units is None):
        return (2.0, 0.0)
    return (1.0, risk * (run.units or 0.0)) if run.cost_usd is None else (0.0, risk * run.cost_usd)


def _risk(item: Estimate) -> float:
    return 1 + RISK * (item.verdict == "borderline")


def _amount(item: Estimate) -> float:
    """Samples that the budget buys."""
    return item.within_budget.samples if item.within_budget is not None else 0.0


__all__ = ["RISK", "over_budget", "pareto", "question", "ranked"]
