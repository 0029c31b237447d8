"""Tariff: what a GPU-hour of a machine costs, in its parts, each with whose price it is and of when.

A spec's own price comes first; else the snapshot's median. All ways of charging become rates per GPU-hour that say how
many GPUs are charged together (a node is charged whole) and whether GPUs are charged while idle (rent by the month, and
what was bought, is).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from functools import cache

from catalog import price, store
from catalog.errors import RigplanError
from catalog.price import Offer
from planner import ownership
from planner.money_spec import BuySpec, EnergySpec, OfferSpec, PriceSpec

HOURS_A_MONTH = 365.25 * 24 / 12
USUAL_NODE_GPUS = 8
IN_SPEC = "price given in the spec"


@dataclass(frozen=True, slots=True)
class Rate:
    """One part of a price. `usd` is None where a tariff has only units of its own (`units` a GPU-hour)."""

    what: str
    usd: float | None
    source: str
    date: str | None = None
    block: int = 1  # GPUs that are charged together
    idle: bool = False  # charged for the whole fleet, used or not
    units: float | None = None
    stale: bool = False
    at_once_usd: float | None = None  # what is bought is paid for before its first hour


@dataclass(frozen=True, slots=True)
class Tariff:
    """The parts of a price, or why there is none (`unknown`); `source` and `date` are those of the main part."""

    rates: tuple[Rate, ...] = ()
    unknown: str | None = None
    unit: str | None = None

    @property
    def source(self) -> str:
        return self.rates[0].source if self.rates else self.unknown or ""

    @property
    def stale(self) -> bool:
        return any(rate.stale for rate in self.rates)

    @property
    def date(self) -> str | None:
        return self.rates[0].date if self.rates else None


@dataclass(frozen=True, slots=True)
class Machine:
    """What a price depends on: `count` GPUs of one kind in nodes of `gpus_per_node`."""

    gpu: str
    count: int
    gpus_per_node: int | None
    price: PriceSpec | None
    energy: EnergySpec


@cache
def tariff(machine: Machine) -> Tariff:
    """The tariff of a machine: the spec's, else the median of the snapshot; `unknown` says why when neither exists."""
    asked = machine.price
    if asked is None:
        return _snapshot(machine)
    if asked.offer is not None:
        return _offered(machine, asked.offer)
    if asked.buy is not None:
        return _bought(machine, asked.buy)
    node = machine.gpus_per_node or USUAL_NODE_GPUS
    dated = {
        "source": asked.source or IN_SPEC,
        "date": str(asked.date) if asked.date else None,
        "stale": asked.date is not None and _old(asked.date),
    }
    if asked.usd_per_gpu_hour is not None:
        return Tariff((Rate("rent by the GPU-hour", asked.usd_per_gpu_hour, **dated),))  # type: ignore[arg-type]
    if asked.usd_per_node_hour is not None:
        return Tariff((Rate("rent of whole nodes", asked.usd_per_node_hour / node, block=node, **dated),))  # type: ignore[arg-type]
    if asked.usd_per_month is not None:
        hourly = asked.usd_per_month / HOURS_A_MONTH / machine.count
        return Tariff((Rate("rent by the month", hourly, idle=True, block=machine.count, **dated),))  # type: ignore[arg-type]
    whole = asked.units_per_gpu_hour is None
    units = (asked.units_per_node_hour or 0.0) / node if whole else asked.units_per_gpu_hour or 0.0
    usd = None if asked.usd_per_unit is None else units * asked.usd_per_unit
    rate = Rate(f"{asked.unit} of the programme", usd, block=node if whole else 1, units=units, **dated)  # type: ignore[arg-type]
    return Tariff((rate,), unit=asked.unit)


def _old(day: datetime.date) -> bool:
    return (datetime.date.today() - day).days > price.STALE_AFTER_DAYS


def _rate(what: str, offer: Offer, block: int) -> Rate:
    stale = offer.is_stale(datetime.date.today())
    return Rate(what, offer.amount_usd, offer.cost_source, offer.cost_date, block=block, stale=stale)


def _snapshot(machine: Machine) -> Tariff:
    """The median of the snapshot; charged in the smallest size that anybody offers it in."""
    offer = price.default_offer(machine.gpu)
    if offer is None:
        return Tariff(unknown=price.cost_unknown_reason(machine.gpu))
    block = min(other.count for other in price.offers(machine.gpu) if other.kind == offer.kind)
    return Tariff((_rate("rent by the GPU-hour", offer, block),))


def _offered(machine: Machine, asked: OfferSpec) -> Tariff:
    """The cheapest offer of the kind asked for, with the GPUs of an instance charged together."""
    found = [offer for offer in price.offers(machine.gpu) if offer.kind == asked.kind]
    able = [
        offer
        for offer in found
        if (asked.provider is None or offer.provider == asked.provider.lower())
        and (asked.region is None or asked.region.lower() in offer.region.lower())
    ]
    if not able:
        where = " ".join(filter(None, (asked.provider, asked.region)))
        known = ", ".join(sorted({offer.provider for offer in found})) or "nobody"
        return Tariff(
            unknown=f"No {asked.kind} price for {machine.gpu}{' by ' + where if where else ''} in the snapshot "
            f"({price.snapshot_date()}); offered by {known}."
        )
    best = min(able, key=lambda offer: (-(-machine.count // offer.count) * offer.count * offer.amount_usd, offer.count))
    rate = _rate("rent of whole instances" if best.count > 1 else "rent by the GPU-hour", best, best.count)
    named = " ".join(filter(None, (best.kind, best.provider, best.region, best.instance)))
    return Tariff((Rate(rate.what, rate.usd, f"{named}, {best.source}", rate.date, best.count, stale=rate.stale),))


def _bought(machine: Machine, buy: BuySpec) -> Tariff:
    """The purchase spread over its years, and the electricity of the hours that are used."""
    try:
        parts = ownership.capital(machine.gpu, machine.count, machine.gpus_per_node or USUAL_NODE_GPUS, buy)
    except RigplanError as error:
        return Tariff(unknown=str(error))
    hours = buy.years * 12 * HOURS_A_MONTH * buy.utilization * machine.count
    rates = [
        Rate(
            f"{part.what}, over {buy.years:g} years",
            part.usd / hours,
            part.source,
            part.date,
            machine.count,
            True,
            at_once_usd=part.usd,
        )
        for part in parts
    ]
    power = ownership.electricity(store.find(machine.gpu), machine.energy)
    if power is not None:
        rates.append(Rate(power.what, power.usd, power.source, power.date))
    return Tariff(tuple(rates))


__all__ = ["HOURS_A_MONTH", "Machine", "Rate", "Tariff", "tariff"]
