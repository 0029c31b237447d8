"""The spec's parts about money: prices, energy, budgets and campaigns. Money is USD, time days, energy kWh."""

from __future__ import annotations

import datetime
from typing import Annotated, Literal, Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from planner.fields import (
    Allowance,
    AtLeastOne,
    Count,
    Day,
    Dollars,
    Limit,
    MicroBatch,
    Money,
    Share,
    SpecPart,
    Start,
    UpToOne,
    above_zero,
    as_day,
    optional,
    wanting,
)  # fmt: skip

OfferKind = Literal["on-demand", "spot", "marketplace"]

# the ways to charge for a machine, of which a price names one
CHARGES = (
    "usd_per_gpu_hour", "usd_per_node_hour", "usd_per_month", "buy", "offer", "units_per_gpu_hour",
    "units_per_node_hour",
)  # fmt: skip


class BuySpec(SpecPart):
    """Buying instead of renting: USD of one card and of each node, spread over the years it is used."""

    usd: Money = None  # one card; None = the snapshot's newest price to buy
    years: Annotated[float, wanting("a number above 0", above_zero)] = 5.0  # the Brown study's write-off
    utilization: UpToOne = 1.0  # the share of those years in which the cards work
    host_usd: Money = None  # one node without its cards; None = the snapshot's host of that size
    network_usd: Share = 0.0  # switches and cables, a node


class OfferSpec(SpecPart):
    """An hourly price of the snapshot: the cheapest of this kind, of one provider or region where given."""

    kind: OfferKind = "on-demand"  # marketplace: cards that others rent out
    provider: str | None = None  # None = any
    region: str | None = None  # None = any


class PriceSpec(SpecPart):
    """What the machine costs, instead of the snapshot's median: exactly one way of charging, in USD."""

    usd_per_gpu_hour: Money = None  # the plain way
    usd_per_node_hour: Money = None  # nodes are charged whole
    usd_per_month: Money = None  # the whole of `hardware.count`, used or not
    buy: BuySpec | None = None  # bought and written off
    offer: OfferSpec | None = None  # one of the snapshot
    units_per_gpu_hour: Money = None  # a campus tariff in units of its own
    units_per_node_hour: Money = None  # the same by the node
    unit: str = "SU"  # the name of those units
    usd_per_unit: Money = None  # None = the units alone are told
    currency: Dollars = "USD"  # nothing else is taken
    source: str | None = None  # whose price it is, and of when
    date: Annotated[datetime.date | None, wanting("a date such as 2026-11-30", optional(as_day))] = None  # of the price

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        given = [key for key in CHARGES if getattr(self, key) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            wanted = "found {found}, wanted exactly one of {known}"
            raise PydanticCustomError("said", wanted, {"found": found, "known": ", ".join(CHARGES)})
        return self

    @property
    def is_plain(self) -> bool:
        """Whether it is a rate per GPU-hour and nothing else."""
        return self == PriceSpec(usd_per_gpu_hour=self.usd_per_gpu_hour) if self.usd_per_gpu_hour is not None else False


class EnergySpec(SpecPart):
    """Electricity: what a kWh costs and emits, and how much the building adds. None = the catalog's facts."""

    usd_per_kwh: Money = None  # on top of what is bought
    co2_g_per_kwh: Money = None  # None = no CO2 is told
    pue: AtLeastOne = None  # what the building adds


class BudgetSpec(SpecPart):
    """Limits a plan must keep. `deadline` is the day by which a run begun on `start`, or else today, must be done."""

    usd: Limit = None  # of the run, or of the campaign
    days: Limit = None  # from its start
    deadline: Day = None  # a run that begins on the start ends before it
    start: Start = None  # the first day of training; None = today

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.start is not None and self.deadline is not None and self.deadline <= self.start:
            found = {"deadline": str(self.deadline), "start": str(self.start)}
            raise PydanticCustomError("said", "found deadline {deadline}, wanted a day after the start, {start}", found)
        return self

    @property
    def first_day(self) -> datetime.date:
        """The day on which training begins."""
        return self.start or datetime.date.today()

    @property
    def most_days(self) -> float | None:
        """Days until the nearer of the two limits of time."""
        left = None if self.deadline is None else float((self.deadline - self.first_day).days)
        return min((limit for limit in (self.days, left) if limit is not None), default=None)


class ActivitySpec(SpecPart):
    """Runs beside the final ones, each a share of a full run."""

    runs: Count  # how many
    share: UpToOne = 1.0  # of a full run


class CampaignSpec(SpecPart):
    """Many independent runs on a fleet of `hardware.count` GPUs: sweeps, seeds, one model per language pair.

    `gpus_per_run` and `parallel` left to auto are tried: 1, 2, 4, ... GPUs a run, as many side by side as there is room
    for. The shares are of the GPU-hours: `overhead` on every run, `production` and `failed` on all runs, `contingency`
    on the sum. Predictions are of benchmark speed, of which published long runs reach 0.75 to 0.85: `production` is
    what they lose to evaluation, checkpoint writing, data loading and restarts. Left out, it is what of those 0.25
    `overhead` does not already count; 0 is none. `failed` is for runs that are thrown away whole.
    """

    runs: Count  # how many
    parallel: MicroBatch = None  # runs side by side; None = auto
    gpus_per_run: MicroBatch = None  # None = auto
    pilot: ActivitySpec | None = None  # before the final runs
    ablation: ActivitySpec | None = None  # before the final runs
    overhead: Share = 0.0  # evaluation, saving and restarts, on every run
    production: Allowance = None  # of all runs: what long ones lose against a benchmark; None = as published
    failed: Share = 0.0  # of all runs, lost whole and repeated
    contingency: Share = 0.0  # on the sum
