"""Steps: what real training steps tell that operators timed alone do not, as factors of a profile.

Two things: how long the host takes to issue an operator inside a real model, and how much slower dense products run
when they go on for seconds instead of milliseconds (the card reaches its power limit and lowers its clocks).

`rigplan calibrate run` trains the cases of steps.yaml and fits these factors into the profile that it writes;
`rigplan calibrate steps` fits them to records that exist.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.optimize import least_squares

from calibrate.device import name_in_catalog
from catalog import profile as profiles
from catalog.errors import RigplanError
from catalog.profile import Factor
from planner import machine as machines
from planner.cache import Workloads
from planner.evaluate import knobs_of, not_possible
from planner.spec import Spec
from planner.step import (
    HOST_COMPILED,
    HOST_PHASES,
    SUSTAINED,
    compiled_work,
    host_work,
    phases,
    priced,
    sustained_class,
)
from planner.strategy import batch_plan, choices
from planner.workload import CALL, PHASES, Workload

CASES = Path(__file__).with_name("steps.yaml")
CASE_SECONDS = 60.0  # after which one case is stopped; it takes five
START_SECONDS = 60.0  # beside the cases' own time, for a new process to import torch
# A phase whose host time is this share of its device time was limited by the host; below the other, by the device.
HOST_LIMITED = 0.95
DEVICE_LIMITED = 0.8
# A ratio is fitted where at least so many runs spend that share of their step in its products.
FEWEST_RUNS = 2
LEAST_SHARE = 0.2

Record = Mapping[str, Any]
Say = Callable[[str], None]
Execute = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One training record beside its workload and the seconds its operators take alone."""

    record: Record
    workload: Workload
    accumulation: int
    alone: dict[str, float]  # seconds of one step by sustained class
    busy: dict[str, float]  # seconds of the operators of forward and backward

    @property
    def filled(self) -> bool:
        """Whether the device's own work fills the step: then the host waits for it, however fast it is."""
        return sum(self.alone.values()) >= HOST_LIMITED * float(self.record["pipelined_seconds"])

    def limits(self, phase: str) -> bool:
        """Whether the host limits a phase: it is busy for as long, and operators do not fill it (or, in the optimizer,
        which may wait for what comes before it, the step)."""
        host, device = (float(self.record[f"{phase}{kind}_seconds"]) for kind in ("_host", ""))
        filled = self.filled if phase == "optimizer" else self.busy[phase] >= HOST_LIMITED * device
        return host >= HOST_LIMITED * device and not filled


def trained(accelerator: str, minutes: float, say: Say, execute: Execute = subprocess.run) -> list[dict[str, Any]]:
    """Records of the cases of steps.yaml, trained here in a process of its own: its children must start without CUDA.

    No case is started after `minutes`. A case that fails is a record with its error; a process that fails gives none.
    """
    listed = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    listed["defaults"]["hardware"] = {"gpu": accelerator}
    with tempfile.TemporaryDirectory() as folder:
        cases, output = Path(folder) / "cases.yaml", Path(folder) / "runs.jsonl"
        cases.write_text(yaml.safe_dump(listed), encoding="utf-8")
        command = [sys.executable, "-m", "calibrate.train", str(cases), "-o", str(output)]
        command += ["--minutes", f"{minutes:.3f}", "--timeout", f"{CASE_SECONDS:g}"]
        try:
            execute(command, check=True, stdout=sys.stderr, timeout=60 * minutes + CASE_SECONDS + START_SECONDS)
        except (subprocess.SubprocessError, OSError) as error:
            say(f"training steps ended early: {error}")
        return read(output) if output.exists() else []


def read(*paths: Path) -> list[dict[str, Any]]:
    """Training records: lines of `calibrate train`, or of what `calibrate run` keeps beside a profile; each file of one
    machine."""
    found = []
    for path in paths:
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                line = json.loads(text)
                record = line.get("training", line)
            except (ValueError, AttributeError):
                wanted = "wanted records of `calibrate train`"
                raise RigplanError(f"{path}:{number}: found no JSON object; {wanted}") from None
            if "spec" in record:
                found.append(record if len(paths) == 1 else {"machine": path.name, **record})
    return found


def improve(path: Path, records: Sequence[Record], say: Say) -> dict[str, Factor]:
    """Fit what `records` tell into the profile at `path`; the fitted factors. RigplanError when they tell nothing."""
    known = profiles.load(path)
    found = runs(records, str(path), known.accelerator, say)
    eager = [run for run in found if not compiled_work(run.workload)[0]]
    compiled = [run for run in found if compiled_work(run.workload)[0]]
    enter_s = {**profiles.prior_factors(), **known.factors}[HOST_COMPILED["enter"]].value
    fitted = host_factors(eager) | sustained_factors(eager) | compiled_factors(compiled, enter_s)
    if not fitted:
        raise RigplanError(
            f"found {len(found)} timed training runs on {known.accelerator}; wanted some limited by the host, and some "
            "by the device: `rigplan calibrate train CASES.yaml -o RUNS.jsonl` makes them"
        )
    profiles.save(replace(known, factors={**known.factors, **fitted}), path)
    return fitted


def runs(records: Iterable[Record], profile: str, accelerator: str, say: Say) -> list[Run]:
    """The records timed on `accelerator` that can be traced here, with their workloads; `say` hears of every one."""
    found = []
    for record in records:
        name = str(record.get("name", "?"))
        if "pipelined_seconds" not in record:
            say(f"left out {name}: {record.get('message') or 'not timed'}"[:200])
            continue
        gpu = _gpu(record)
        if gpu not in (None, accelerator):
            say(f"left out {name}: it ran on {gpu}, and the profile is of {accelerator}")
            continue
        try:
            run = _run({**record, "spec": {**record["spec"], "hardware": {"gpu": accelerator}}}, profile)
        except RigplanError as error:
            say(f"left out {name}: {error}")
            continue
        found.append(run)
        say(f"{name}: {len(run.workload.calls)} calls, {1000 * record['pipelined_seconds']:.1f} ms a step")
    return found


def _gpu(record: Record) -> str | None:
    """The catalog's name of what a record was made on; None where it does not tell."""
    if "device" not in record or "total_bytes" not in record:
        return None
    return name_in_catalog(str(record["device"]), int(record["total_bytes"])) or str(record["device"])


def _run(record: Record, profile: str) -> Run:
    spec = Spec.load(record["spec"])
    strategy, choice = next(iter(choices(spec)))
    machine = machines.resolve(choice, profile)
    batches = batch_plan(strategy, machine.choice)
    reason = batches if isinstance(batches, str) else not_possible(strategy, machine)
    if isinstance(batches, str) or reason:
        raise RigplanError(str(reason))
    workload = Workloads(spec.model, spec.data).at(knobs_of(strategy, machine), batches.micro_batch)
    costs = priced(workload, machine.pricing(tf32=strategy.precision == "tf32"))
    counts = np.bincount(workload.calls_in("micro_step"), minlength=len(workload.calls)) * batches.accumulation
    counts = counts + np.bincount(workload.calls_in("optimizer"), minlength=len(workload.calls))
    alone: dict[str, float] = {}
    for operator, seconds, count in zip(costs.operators, costs.alone, counts, strict=True):
        name = sustained_class(operator)
        alone[name] = alone.get(name, 0.0) + float(seconds * count)
    return Run(record, workload, batches.accumulation, alone, _busy(workload, costs.device, batches.accumulation))


def _busy(workload: Workload, seconds: NDArray[np.float64], accumulation: int) -> dict[str, float]:
    """Seconds of a step's operators by phase; `seconds` are those of each call."""
    events = workload.segments["micro_step"]
    found = {}
    for phase in ("forward", "backward"):
        calls = events.values[(events.codes == CALL) & (phases(events) == PHASES.index(phase))]
        found[phase] = accumulation * float(seconds[calls].sum())
    return found


def host_factors(found: list[Run]) -> dict[str, Factor]:
    """Seconds per operator and phase: the median over the runs of a machine whose phase the host limited, and the
    geometric mean over machines, which differ by a third with one kind of GPU.

    In the optimizer the host may also wait for the backward before it, which only adds: there it is the lower quartile.
    """
    factors = {}
    for phase, name in HOST_PHASES.items():
        per_unit: dict[str, list[float]] = defaultdict(list)
        for run in found:
            work = host_work(run.workload, phase) * (run.accumulation if phase != "optimizer" else 1)
            if work and run.limits(phase):
                per_unit[run.record.get("machine", "")].append(run.record[f"{phase}_host_seconds"] / work)
        if per_unit:
            factors[name] = _over_machines(per_unit, 0.5 if phase != "optimizer" else 0.25, "training runs")
    return factors


def compiled_factors(found: list[Run], enter_s: float) -> dict[str, Factor]:
    """Seconds per launch of a compiled program, as host_factors; `enter_s` of them are of entering it."""
    per_launch: dict[str, list[float]] = defaultdict(list)
    for run in found:
        host, device = (
            sum(run.record[f"{phase}{kind}_seconds"] for phase in ("forward", "backward")) for kind in ("_host", "")
        )
        entries, launches = compiled_work(run.workload)
        if host >= HOST_LIMITED * device and not run.filled:
            spent = host / run.accumulation - entries * enter_s
            per_launch[run.record.get("machine", "")].append(spent / launches)
    return {HOST_COMPILED["launch"]: _over_machines(per_launch, 0.5, "compiled runs")} if per_launch else {}


def _over_machines(values: Mapping[str, list[float]], share: float, runs: str) -> Factor:
    every = np.concatenate([*values.values()])
    likely = float(np.exp(np.mean([np.log(np.quantile(of_one, share)) for of_one in values.values()])))
    spread = float(np.median(np.abs(np.log(every / likely))))
    where = f" on {len(values)} machines" if len(values) > 1 else ""
    return Factor(likely, "s", f"{len(every)} {runs} limited by the host{where}", spread)


def sustained_factors(found: list[Run]) -> dict[str, Factor]:
    """Ratio of sustained to short timing by class of product, by robust least squares over device-limited runs."""
    used = [run for run in found if run.record["host_seconds"] < DEVICE_LIMITED * run.record["pipelined_seconds"]]
    names = [
        name
        for name in dict.fromkeys(SUSTAINED.values())
        if sum(run.alone.get(name, 0.0) >= LEAST_SHARE * run.record["pipelined_seconds"] for run in used) >= FEWEST_RUNS
    ]
    rows = np.array([[run.alone.get(name, 0.0) for name in names] for run in used])
    rest = np.array([sum(value for key, value in run.alone.items() if key not in names) for run in used])
    measured = np.array([run.record["pipelined_seconds"] for run in used])
    if not names or len(used) < 2 * len(names):
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
