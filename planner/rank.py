"""Rank: the order of a plan's estimates, its front of days against USD, and what a budget leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from catalog.units import days, usd
from planner.answer import Estimate
from planner.spec import BudgetSpec

Key = tuple[float, ...]


def ranked(estimates: Sequence[Estimate], objective: str) -> list[Estimate]:
    """Best first. Equal ones keep the order of the spec; without a price they come last, by time."""
    front = {id(item) for item in pareto(estimates)} if objective == "pareto" else set()
    orders: dict[str, Callable[[Estimate], Key]] = {
        "cost": lambda item: (*_cost(item), _time(item)),
        "time": lambda item: (_time(item), *_cost(item)),
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
    if budget is None or estimate.run is None:
        return None
    run, said = estimate.run, []
    if budget.days is not None and run.days > budget.days:
        said.append(f"{days(run.days)} is over the {budget.days:g} days by {days(run.days - budget.days)}")
    if budget.usd is not None and run.cost_usd is None:
        said.append(f"its cost is not known, so it cannot be held to {usd(budget.usd)}")
    elif budget.usd is not None and run.cost_usd is not None and run.cost_usd > budget.usd:
        said.append(f"{usd(run.cost_usd)} is over the {usd(budget.usd)} by {usd(run.cost_usd - budget.usd)}")
    return f"over budget: {' and '.join(said)}" if said else None


def _time(item: Estimate) -> float:
    """Days of the run; without one, seconds a sample, which orders alike."""
    if item.run is not None:
        return item.run.days
    if item.step is not None and item.strategy.global_batch:
        return item.step.seconds / item.strategy.global_batch
    return float(item.memory.device_bytes)


def _cost(item: Estimate) -> tuple[float, float]:
    """(0, USD) where a price is known, else (1, 0)."""
    if item.run is None or item.run.cost_usd is None:
        return (1.0, 0.0)
    return (0.0, item.run.cost_usd)


__all__ = ["over_budget", "pareto", "ranked"]
