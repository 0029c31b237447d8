"""Money: an estimate's days turned into USD, units, kWh and CO2, and what a budget buys.

Done after an answer is read back, so that a price of today never comes out of a cache.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from catalog import price
from catalog.errors import RigplanError
from planner import ownership
from planner.answer import BreakEven, Estimate, HardwareUsed, Run, WithinBudget
from planner.billing import bill, co2_kg, energy, source
from planner.burn import burn
from planner.campaign import pack, usage_of
from planner.money_spec import BudgetSpec, BuySpec, EnergySpec, PriceSpec
from planner.spec import Spec
from planner.tariff import HOURS_A_MONTH, USUAL_NODE_GPUS, Machine, tariff

DAY_S = 86_400.0


def charged(spec: Spec, found: Estimate) -> Estimate:
    """The estimate with its cost, energy and campaign, and what the budget would buy."""
    if found.step is None:
        return found
    machine = machine_of(found.hardware, spec.energy)
    changes: dict[str, object] = {}
    if found.run is not None:
        run = _priced(found.run, machine)
        changes["run"] = run
        if spec.campaign is not None:
            fleet = machine_of(found.hardware, spec.energy, whole=True)
            changes["campaign"] = pack(spec.campaign, found, run, fleet)
    if spec.budget is not None:
        changes["within_budget"] = within(spec.budget, found, machine)
    return found.model_copy(update=changes) if changes else found


def month_by_month(spec: Spec, found: Estimate) -> Estimate:
    """A charged estimate with the months of its run, and of its campaign where there is one."""
    first_day = (spec.budget or BudgetSpec()).first_day
    changes: dict[str, object] = {}
    if found.run is not None:
        count, days = found.hardware.count, found.run.days
        terms = tariff(machine_of(found.hardware, spec.energy))
        months = burn(terms, count, [(count, days)], first_day)
        changes["run"] = found.run.model_copy(update={"months": months})
        if found.campaign is not None and spec.campaign is not None:
            fleet = machine_of(found.hardware, spec.energy, whole=True)
            usage = usage_of(spec.campaign, days, count, fleet.count)
            months = burn(tariff(fleet), fleet.count, usage, first_day)
            changes["campaign"] = found.campaign.model_copy(update={"months": months})
    return found.model_copy(update=changes) if changes else found


def machine_of(hardware: HardwareUsed, energy: EnergySpec, *, whole: bool = False) -> Machine:
    """What the price of an estimate's machine depends on; the `whole` fleet of a campaign, else the GPUs of one run."""
    asked = hardware.price
    if hardware.usd_per_gpu_hour is not None:
        asked = PriceSpec(usd_per_gpu_hour=hardware.usd_per_gpu_hour)
    fleet = hardware.fleet or hardware.count
    count = fleet if whole else hardware.count
    if not whole and asked is not None and asked.usd_per_month is not None:
        asked = asked.model_copy(update={"usd_per_month": asked.usd_per_month * count / fleet})  # one run's share of it
    return Machine(hardware.gpu, count, hardware.gpus_per_node, asked, energy)


def _priced(run: Run, machine: Machine) -> Run:
    terms = tariff(machine)
    cost = bill(terms, machine.count, [(machine.count, run.days)])
    energy_kwh = energy(machine, run.gpu_hours)
    return run.model_copy(
        update={
            "cost_usd": cost.usd,
            "cost_source": source(terms, cost.usd),
            "cost_date": terms.date,
            "cost_is_old": terms.stale,
            "billed_gpu_hours": cost.gpu_hours,
            "cost_lines": list(cost.lines),
            "units": cost.units,
            "unit": terms.unit,
            "energy_kwh": energy_kwh,
            "co2_kg": co2_kg(machine.energy, energy_kwh),
            "break_even": compared(machine),
        }
    )


@cache
def compared(machine: Machine) -> BreakEven | None:
    """Buying this machine against renting it; None where a price of either is not known."""
    asked = machine.price
    buying = asked is not None and asked.buy is not None
    buy = asked.buy if asked is not None and asked.buy is not None else BuySpec()
    rent = tariff(replace(machine, price=None) if buying else machine)
    if not rent.rates or rent.rates[0].usd is None:
        return None
    main = rent.rates[0]
    hourly = ownership.Part("rent", rent.rates[0].usd, main.source, main.date)
    try:
        found = ownership.break_even(
            machine.gpu,
            machine.count,
            machine.gpus_per_node or USUAL_NODE_GPUS,
            buy,
            machine.energy,
            hourly,
            HOURS_A_MONTH,
        )
    except RigplanError:
        return None
    if found is None:
        return None
    return BreakEven(
        months=found.months,
        buy_usd=found.buy_usd,
        rent_usd_per_month=found.rent_usd_per_month,
        running_usd_per_month=found.running_usd_per_month,
        sources=list(found.sources),
    )


def within(budget: BudgetSpec, found: Estimate, machine: Machine) -> WithinBudget | None:
    """How much training the budget buys at the speed of an estimate; None where no limit can be applied."""
    if found.throughput is None:
        return None
    a_day = bill(tariff(machine), machine.count, [(machine.count, 1.0)]).usd
    affordable = budget.usd / a_day if budget.usd is not None and a_day else None
    limits = [limit for limit in (affordable, budget.most_days) if limit is not None]
    if not limits:
        return None
    days = min(limits)
    each = found.throughput.tokens_per_second_per_gpu
    return WithinBudget(
        days=days,
        usd=None if a_day is None else a_day * days,
        samples=found.throughput.samples_per_second * days * DAY_S,
        tokens=None if each is None else each * found.hardware.count * days * DAY_S,
        bound="usd" if days == affordable else "days",
    )


def old_prices(found: Iterable[Estimate]) -> list[str]:
    """A note for the prices that are older than 90 days, which a budget should not rest on."""
    old: dict[str, str] = {}
    for item in found:
        if item.run is not None and item.run.cost_is_old:
            old[item.hardware.gpu] = item.run.cost_date or ""
    if not old:
        return []
    told = ", ".join(f"{gpu} {_age(date)}" for gpu, date in old.items())
    return [f"OLD PRICES: {told}. Before you budget, {price.RENEW}"]


def _age(asked: str) -> str:
    days = price.age_days(asked, datetime.date.today())
    return "without a date" if days is None else f"{days} days old ({asked})"


__all__ = ["charged", "compared", "machine_of", "month_by_month", "old_prices", "within"]
