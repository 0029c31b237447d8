"""The figures a reviewer looks for first, each with how it is known or whose it is. No numbers are made here."""

from __future__ import annotations

from dataclasses import dataclass

from catalog.units import count, days, gib, seconds, usd
from planner.answer import Estimate, Spent
from planner.report.layout import few_digits, size


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure: what it is, its value, and its source."""

    name: str
    value: str
    source: str


def facts(best: Estimate) -> list[Fact]:
    """Time, cost, work, memory and energy of a plan, as far as they are known."""
    spent = best.campaign or best.run
    found = [] if spent is None else [_time(best, spent), _cost(spent), _work(best, spent)]
    memory = best.memory
    between = f"between {gib(memory.low_bytes)} and {gib(memory.high_bytes)}; {memory.known}"
    found.append(Fact("memory of a GPU", f"{size(memory.device_bytes)} of {size(memory.usable_bytes)} GiB", between))
    if spent is not None and spent.energy_kwh is not None:
        co2 = f"{few_digits(spent.co2_kg)} kg of CO2 at the given intensity; " if spent.co2_kg is not None else ""
        found.append(Fact("energy", f"{few_digits(spent.energy_kwh)} kWh", f"{co2}rated power, server and building"))
    return found


def _time(best: Estimate, spent: Spent) -> Fact:
    steps = f"{count(best.run.steps)} steps of {seconds(best.step.seconds)}" if best.run and best.step else ""
    known = best.step.known if best.step else ""
    told = "; ".join(filter(None, (f"{days(spent.low_days)} to {days(spent.high_days)}", steps, known)))
    return Fact("time", days(spent.days), told)


def _cost(spent: Spent) -> Fact:
    source = ", ".join(filter(None, (spent.cost_source, spent.cost_date)))
    if spent.cost_usd is not None:
        return Fact("cost", usd(spent.cost_usd), f"{source} (more than 90 days old)" if spent.cost_is_old else source)
    return Fact("cost", f"{spent.units:,.0f} {spent.unit}" if spent.units is not None else "not known", source)


def _work(best: Estimate, spent: Spent) -> Fact:
    plan, each = best.campaign, best.hardware.count
    if plan is None:
        return Fact("GPU time", f"{few_digits(spent.gpu_hours)} GPU-hours", f"{each} x {best.hardware.gpu}")
    told = f"{plan.runs} runs of {each}, {plan.parallel} at once; the fleet is busy {plan.busy_share:.0%} of the time"
    return Fact("GPU time", f"{few_digits(spent.gpu_hours)} GPU-hours", told)


__all__ = ["Fact", "facts"]
