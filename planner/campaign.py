"""Campaign: many independent runs packed on a fleet, with the runs beside the final ones and the allowances on top.

    pilot, then ablation, then the final runs      each in waves of as many as fit side by side
    + production, + failed runs, + contingency     shares of the GPU-hours before them, at the same packing

Every run is as long as one estimate says; runs of one activity are alike, so that full waves are the best packing.
"""

from __future__ import annotations

from dataclasses import dataclass

from catalog.overheads import overheads
from planner.answer import Activity, Campaign, Estimate, Run
from planner.billing import Bill, Usage, bill, co2_kg, energy, source
from planner.money_spec import CampaignSpec
from planner.tariff import Machine, Tariff, tariff

DAY_H = 24.0


@dataclass(frozen=True, slots=True)
class _Packed:
    """One activity on the fleet: how long, and how many GPUs are busy for how many days."""

    name: str
    runs: int
    share: float
    days_per_run: float
    days: float
    overhead_gpu_hours: float
    gpu_hours: float
    usage: Usage


def pack(asked: CampaignSpec, found: Estimate, run: Run, fleet: Machine) -> Campaign:
    """The campaign of an estimate's runs on a fleet of `fleet.count` GPUs, each run on `found.hardware.count`."""
    gpus = found.hardware.count
    parallel, packed = _all_packed(asked, run.days, gpus, fleet.count)
    terms = tariff(fleet)
    total = bill(terms, fleet.count, [use for part in packed for use in part.usage])
    days, gpu_hours = sum(part.days for part in packed), sum(part.gpu_hours for part in packed)
    energy_kwh = energy(fleet, gpu_hours)
    return Campaign(
        runs=asked.runs,
        fleet=fleet.count,
        gpus_per_run=gpus,
        parallel=parallel,
        waves=-(-asked.runs // parallel),
        busy_share=gpu_hours / (fleet.count * days * DAY_H),
        activities=[_row(asked, part, gpus, terms, fleet.count) for part in packed],
        days=days,
        low_days=days * run.low_days / run.days,
        high_days=days * run.high_days / run.days,
        gpu_hours=gpu_hours,
        cost_usd=total.usd,
        cost_source=source(terms, total.usd),
        cost_date=terms.date,
        cost_is_old=terms.stale,
        cost_lines=list(total.lines),
        billed_gpu_hours=total.gpu_hours,
        units=total.units,
        unit=terms.unit,
        energy_kwh=energy_kwh,
        co2_kg=co2_kg(fleet.energy, energy_kwh),
    )


def usage_of(asked: CampaignSpec, run_days: float, gpus: int, fleet: int) -> Usage:
    """How many GPUs of the fleet are busy for how many days, from the first pilot to the last of the allowances."""
    return [use for part in _all_packed(asked, run_days, gpus, fleet)[1] for use in part.usage]


def _all_packed(asked: CampaignSpec, run_days: float, gpus: int, fleet: int) -> tuple[int, list[_Packed]]:
    """How many runs go side by side, and every activity and allowance in order."""
    side_by_side = max(1, fleet // gpus)
    parallel = min(side_by_side, asked.parallel or side_by_side)
    counted = [
        _packed(name, runs, share, run_days, gpus, parallel, asked.overhead) for name, runs, share in _activities(asked)
    ]
    return parallel, [*counted, *_allowances(asked, counted)]


def _activities(asked: CampaignSpec) -> list[tuple[str, int, float]]:
    """What is run, in the order that it must be: name, runs, share of a full run."""
    beside = [(name, part) for name, part in (("pilot", asked.pilot), ("ablation", asked.ablation)) if part is not None]
    return [*((name, part.runs, part.share) for name, part in beside), ("final", asked.runs, 1.0)]


def _packed(name: str, runs: int, share: float, run_days: float, gpus: int, parallel: int, overhead: float) -> _Packed:
    bare_days = run_days * share
    days_per_run = bare_days * (1 + overhead)
    waves, rest = divmod(runs, parallel)
    usage = [(parallel * gpus, waves * days_per_run)] if waves else []
    usage += [(rest * gpus, days_per_run)] if rest else []
    return _Packed(
        name,
        runs,
        share,
        days_per_run,
        sum(days for _, days in usage),
        runs * gpus * (days_per_run - bare_days) * DAY_H,
        runs * gpus * days_per_run * DAY_H,
        usage,
    )


def production_share(asked: CampaignSpec) -> tuple[float, str | None]:
    """What long runs lose against a benchmark, as a share of their time, and the source where the spec gives none.

    What is published holds evaluation, saving and restarts, so an `overhead` for them is not counted once more.
    """
    if asked.production is not None:
        return asked.production, None
    published = overheads()["production"]
    return max(0.0, (1 + float(published["value"][1])) / (1 + asked.overhead) - 1), str(published["source"])


def _allowances(asked: CampaignSpec, counted: list[_Packed]) -> list[_Packed]:
    """Production and failed runs as shares of what is run, then contingency; packed like what they are of."""
    rows: list[_Packed] = []
    shares = (
        ("production", production_share(asked)[0]),
        ("failed", asked.failed),
        ("contingency", asked.contingency),
    )
    for name, share in shares:
        if share:
            before = [*counted, *rows]
            rows.append(
                _Packed(
                    name,
                    0,
                    share,
                    0.0,
                    share * sum(part.days for part in before),
                    0.0,
                    share * sum(part.gpu_hours for part in before),
                    [(busy, days * share) for part in before for busy, days in part.usage],
                )
            )
    return rows


def _row(asked: CampaignSpec, part: _Packed, gpus: int, terms: Tariff, fleet: int) -> Activity:
    cost: Bill = bill(terms, fleet, part.usage)
    return Activity(
        name=part.name,
        runs=part.runs,
        share=part.share,
        days_per_run=part.days_per_run,
        gpu_hours_per_run=part.days_per_run * gpus * DAY_H,
        overhead_gpu_hours=part.overhead_gpu_hours,
        gpu_hours=part.gpu_hours,
        days=part.days,
        cost_usd=cost.usd,
        units=cost.units,
        source=production_share(asked)[1] if part.name == "production" else None,
    )


__all__ = ["pack", "usage_of"]
