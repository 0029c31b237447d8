"""Billing: the use of a machine turned into USD, a programme's units, kWh and CO2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from catalog import store
from catalog.errors import RigplanError
from planner import ownership
from planner.answer import CostLine
from planner.money_spec import EnergySpec
from planner.tariff import Machine, Tariff

DAY_H = 24.0
Usage = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Bill:
    """What some use of a machine is charged; `usd` is None where no price is known."""

    usd: float | None
    units: float | None
    gpu_hours: float
    lines: tuple[CostLine, ...]


def bill(terms: Tariff, fleet: int, usage: Usage) -> Bill:
    """Charge the use of a fleet: pairs of how many GPUs were busy and for how many days."""
    lines: list[CostLine] = []
    usd: float | None = 0.0 if terms.rates else None
    units = 0.0
    for rate in terms.rates:
        hours = sum(_charged_gpus(busy, fleet, rate.block, rate.idle) * days * DAY_H for busy, days in usage)
        part = None if rate.usd is None else rate.usd * hours
        usd = None if usd is None or part is None else usd + part
        units += (rate.units or 0.0) * hours
        lines.append(CostLine(what=rate.what, usd=part, source=rate.source, date=rate.date))
    main = terms.rates[0] if terms.rates else None
    block, idle = (main.block, main.idle) if main else (1, False)
    gpu_hours = sum(_charged_gpus(busy, fleet, block, idle) * days * DAY_H for busy, days in usage)
    return Bill(usd, units if terms.unit else None, gpu_hours, tuple(lines))


def _charged_gpus(busy: int, fleet: int, block: int, idle: bool) -> int:
    return fleet if idle else -(-busy // block) * block


def source(terms: Tariff, usd: float | None) -> str:
    """Whose price it is, or why there is none."""
    if usd is None and terms.rates:
        return f"charged in {terms.unit}; set hardware.price.usd_per_unit to have USD"
    return terms.source


def energy(machine: Machine, gpu_hours: float) -> float | None:
    """kWh of some GPU-hours with the server and the building; None where the card's power is not known."""
    power_kw = _kilowatts(machine.gpu, machine.energy)
    return None if power_kw is None else power_kw * gpu_hours


@cache
def _kilowatts(gpu: str, asked: EnergySpec) -> float | None:
    try:
        return ownership.kilowatts(store.find(gpu), asked)
    except RigplanError:
        return None


def co2_kg(asked: EnergySpec, energy_kwh: float | None) -> float | None:
    """kg of CO2 at the grid's intensity; None where that was not given."""
    return None if asked.co2_g_per_kwh is None or energy_kwh is None else energy_kwh * asked.co2_g_per_kwh / 1000


__all__ = ["Bill", "Usage", "bill", "co2_kg", "energy", "source"]
