"""Leave out: how exact a step is on a model that calibration has not seen.

Each real run is priced by a profile without any of its own calls: no exact points, and curves without the samples that
are equal to one of them. What is left is what other models and the sweep say.

`python -m calibrate.leave_out RUNS.jsonl PROFILE [SAVED]` prints the error of each run and, by what limits it, their
mean, 90th percentile and worst. RUNS are the records of `calibrate train`; workloads traced once are kept in SAVED.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.steps import DEVICE_LIMITED
from catalog import profile as profiles
from catalog.errors import RigplanError
from catalog.profile import Profile, Samples, curve_dtype
from planner import machine as machines
from planner.cache import Workloads
from planner.cost import Pricing, point_key
from planner.evaluate import knobs_of
from planner.operators import Operator, describe
from planner.spec import Spec
from planner.step import step_time
from planner.strategy import batch_plan, choices
from planner.workload import Workload


@dataclass(frozen=True, slots=True)
class Held:
    """One run: measured seconds of a step, those priced with its calls known, and with them left out."""

    name: str
    measured_seconds: float
    known_seconds: float
    left_out_seconds: float
    device_limited: bool
    family: str
    host_bound_share: float


def without(profile: Profile, workload: Workload, *, tf32: bool) -> Profile:
    """The profile as if none of the workload's calls had been timed."""
    keys = {point_key(call, tf32) for call in workload.calls}
    seen: dict[str, set[Operator]] = {}
    for call in workload.calls:
        operator = describe(call, tf32=tf32)
        seen.setdefault(f"{operator.kind}/{curve_dtype(operator.kind, operator.dtype)}", set()).add(operator)
    curves = {
        key: tuple(_unseen(samples, seen.get(key, set())) for samples in layers)
        for key, layers in profile.curves.items()
    }
    return replace(
        profile,
        points={key: seconds for key, seconds in profile.points.items() if key not in keys},
        curves={key: layers for key, layers in curves.items() if all(map(len, layers))},
    )


def _unseen(samples: Samples, seen: set[Operator]) -> Samples:
    rows = {_row(item.variant, item.shape, (item.executed_flop, item.bytes_read, item.bytes_written)) for item in seen}
    names = np.asarray(samples.variants)[samples.variant]
    described = zip(names, samples.shape, samples.work, strict=True)
    return samples.take(np.flatnonzero([_row(name, shape, work) not in rows for name, shape, work in described]))


def _row(name: str, shape: Sequence[float], work: Sequence[float]) -> tuple[Any, ...]:
    return (str(name), *map(float, shape), *map(float, work))


def held(records: Iterable[Mapping[str, Any]], profile: str, saved: dict[str, Workload]) -> Iterator[Held]:
    """Every timed record that can be traced here."""
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
            if record["name"] not in saved:
                workloads = Workloads(spec.model, spec.data)
                saved[record["name"]] = workloads.at(knobs_of(strategy, machine), batches.micro_batch)
        except RigplanError as error:
            print(f"left out {record['name']}: {error}", file=sys.stderr)
            continue
        workload, tf32 = saved[record["name"]], strategy.precision == "tf32"
        known = machine.pricing(tf32=tf32)
        unseen = Pricing(known.accelerator, without(known.profile, workload, tf32=tf32), tf32)
        times = [step_time(workload, at, accumulation=batches.accumulation) for at in (known, unseen)]
        limited = record["host_seconds"] < DEVICE_LIMITED * record["pipelined_seconds"]
        yield Held(
            name=str(record["name"]),
            measured_seconds=float(record["step_seconds"]),
            known_seconds=times[0].seconds,
            left_out_seconds=times[1].seconds,
            device_limited=limited,
            family=workload.family,
            host_bound_share=times[1].host_bound_share,
        )


def summary(name: str, errors: Sequence[float]) -> str:
    """Mean, 90th percentile and worst of absolute errors."""
    if not errors:
        return f"{name:48s}  none"
    off = np.abs(errors)
    return f"{name:48s}{len(off):4}  mean {off.mean():6.1%}  p90 {np.quantile(off, 0.9):6.1%}  worst {off.max():6.1%}"


def main(arguments: Sequence[str]) -> int:
    if len(arguments) not in (2, 3):
        print("usage: python -m calibrate.leave_out RUNS.jsonl PROFILE [SAVED]", file=sys.stderr)
        return 2
    records = [json.loads(line) for line in Path(arguments[0]).read_text(encoding="utf-8").splitlines()]
    kept = Path(arguments[2]) if len(arguments) == 3 else None
    saved: dict[str, Workload] = pickle.loads(kept.read_bytes()) if kept and kept.exists() else {}
    profiles.load(Path(arguments[1]))
    found = []
    for run in held(records, arguments[1], saved):
        found.append(run)
        known, unseen = (seconds / run.measured_seconds - 1 for seconds in (run.known_seconds, run.left_out_seconds))
        limit = "device" if run.device_limited else "host"
        errors = f"known {known:+6.1%}  left out {unseen:+6.1%}"
        print(f"{run.name:32s}{run.measured_seconds * 1e3:9.1f} ms  {errors}  {limit}", flush=True)
    if kept:
        kept.write_bytes(pickle.dumps(saved))
    for limited, word in ((True, "limited by the device"), (False, "limited by the host")):
        runs = [run for run in found if run.device_limited == limited]
        print(summary(f"{word}, calls known", [run.known_seconds / run.measured_seconds - 1 for run in runs]))
        print(summary(f"{word}, calls left out", [run.left_out_seconds / run.measured_seconds - 1 for run in runs]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
