"""Steps: what real training steps tell that operators timed alone do not, as factors of a profile.

Two things: how long the host takes to issue an operator inside a real model, and how much slower dense products run
when they go on for seconds instead of milliseconds (the card reaches its power limit and lowers its clocks).

`python -m calibrate.steps RUNS.jsonl PROFILE` fits them to the records of `calibrate train` and adds them to the profile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
from scipy.optimize import least_squares

from catalog import profile as profiles
from catalog.errors import RigplanError
from catalog.profile import Factor
from planner import machine as machines
from planner.cache import Workloads
from planner.evaluate import knobs_of
from planner.spec import Spec
from planner.step import HOST_PHASES, SUSTAINED, host_work, priced, sustained_class
from planner.strategy import batch_plan, choices
from planner.workload import Workload

# A phase whose host time is this share of its device time was limited by the host; below the other, by the device.
HOST_LIMITED = 0.95
DEVICE_LIMITED = 0.8


@dataclass(frozen=True, slots=True)
class Run:
    """One training record beside its workload and the seconds its operators take alone."""

    record: Mapping[str, Any]
    workload: Workload
    accumulation: int
    alone: dict[str, float]  # seconds of one step by sustained class


def runs(records: Iterable[Mapping[str, Any]], profile: str) -> list[Run]:
    """The timed records that can be traced here, each with its workload."""
    found = []
    for record in records:
        if "pipelined_seconds" not in record:
            continue
        spec = Spec.load(record["spec"])
        strategy, choice = next(iter(choices(spec)))
        machine = machines.resolve(choice, profile)
        batches = batch_plan(strategy, machine.choice)
        if isinstance(batches, str):
            continue
        try:
            workload = Workloads(spec.model, spec.data).at(knobs_of(strategy, machine), batches.micro_batch)
        except RigplanError as error:
            click.echo(f"left out {record['name']}: {error}", err=True)
            continue
        costs = priced(workload, machine.pricing(tf32=strategy.precision == "tf32"))
        counts = np.bincount(workload.calls_in("micro_step"), minlength=len(workload.calls)) * batches.accumulation
        counts = counts + np.bincount(workload.calls_in("optimizer"), minlength=len(workload.calls))
        alone: dict[str, float] = {}
        for operator, seconds, count in zip(costs.operators, costs.alone, counts, strict=True):
            name = sustained_class(operator)
            alone[name] = alone.get(name, 0.0) + float(seconds * count)
        found.append(Run(record, workload, batches.accumulation, alone))
    return found


def host_factors(found: list[Run]) -> dict[str, Factor]:
    """Seconds per operator and phase: the median over the runs whose phase the host limited.

    In the optimizer the host may also wait for the backward before it, which only adds: there it is the lower quartile.
    """
    factors = {}
    for phase, name in HOST_PHASES.items():
        per_unit = []
        for run in found:
            host, device = run.record[f"{phase}_host_seconds"], run.record[f"{phase}_seconds"]
            work = host_work(run.workload, phase) * (run.accumulation if phase != "optimizer" else 1)
            if work and host >= HOST_LIMITED * device:
                per_unit.append(host / work)
        if per_unit:
            spread = float(np.median(np.abs(np.log(np.array(per_unit) / median(per_unit)))))
            likely = median(per_unit) if phase != "optimizer" else float(np.quantile(per_unit, 0.25))
            factors[name] = Factor(likely, "s", f"{len(per_unit)} training runs limited by the host", spread)
    return factors


def sustained_factors(found: list[Run]) -> dict[str, Factor]:
    """Ratio of sustained to short timing by class of product, by robust least squares over device-limited runs."""
    used = [run for run in found if run.record["host_seconds"] < DEVICE_LIMITED * run.record["pipelined_seconds"]]
    names = list(dict.fromkeys(SUSTAINED.values()))
    rows = np.array([[run.alone.get(name, 0.0) for name in names] for run in used])
    rest = np.array([sum(value for key, value in run.alone.items() if key not in names) for run in used])
    measured = np.array([run.record["pipelined_seconds"] for run in used])
    if len(used) < 2 * len(names):
        return {}
    solved = least_squares(
        lambda ratios: (rows @ ratios + rest) / measured - 1,
        np.ones(len(names)),
        bounds=(1.0, 2.0),
        loss="soft_l1",
        f_scale=0.02,
    )  # robust: a run with an operator that is priced wrong must not pull the ratio
    error = np.abs((rows @ solved.x + rest) / measured - 1)
    source = f"{len(used)} training runs limited by the device"
    return {
        name: Factor(float(value), "ratio", source, float(np.median(error)))
        for name, value in zip(names, solved.x, strict=True)
    }


@click.command()
@click.argument("records", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("profile", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(records: Path, profile: Path) -> None:
    """Fit the factors that RECORDS (JSON lines of `calibrate train`) show and write them into PROFILE."""
    lines = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    found = runs(lines, str(profile))
    fitted = host_factors(found) | sustained_factors(found)
    known = profiles.load(profile)
    profiles.save(replace(known, factors={**known.factors, **fitted}), profile)
    for name, factor in fitted.items():
        click.echo(f"{name:32s} {factor.value:.4g} {factor.unit}  ({factor.source}, spread {factor.residual:.1%})")


if __name__ == "__main__":
    main()
