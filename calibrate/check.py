"""Predicted against measured: error by GPU, family and knob, worst first."""

from __future__ import annotations

import csv
import importlib
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from catalog.errors import RigplanError

HOST_BOUND_SHARE = 0.5  # a step that waits for the host longer than this is judged apart
PHASES = ("forward", "backward", "optimizer")
WORST = 12  # cases named one by one

Record = dict[str, Any]
Estimator = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run: seconds and bytes, predicted and measured. A phase or peak that was not measured is None."""

    name: str
    gpu: str
    family: str
    knobs: tuple[str, ...]
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    host_bound: bool
    phases: dict[str, tuple[float, float]]
    peak_bytes: tuple[int, int] | None
    known: str

    @property
    def error(self) -> float:
        """Signed, relative to what was measured."""
        return self.predicted_s / self.measured_s - 1

    @property
    def covered(self) -> bool:
        return self.low_s <= self.measured_s <= self.high_s

    def as_json(self) -> Record:
        return asdict(self) | {"error": self.error, "covered": self.covered}


def read(path: Path) -> list[Record]:
    """Records of `calibrate train`, or of a CSV with `spec` (JSON, or a path beside it) and `step_seconds`."""
    if path.suffix.lower() == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return [_from_csv(row, path) for row in csv.DictReader(file)]
    records = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            records.append(json.loads(text))
        except ValueError:
            raise RigplanError(
                f"{path}:{number}: found no JSON; wanted one record of `calibrate train` a line"
            ) from None
    return records


def _from_csv(row: Mapping[str, str], path: Path) -> Record:
    if not row.get("spec") or not row.get("step_seconds"):
        raise RigplanError(f"{path}: found columns {', '.join(row)}; wanted at least spec and step_seconds")
    text = row["spec"]
    spec: Any = json.loads(text) if text.lstrip().startswith("{") else str(path.parent / text)
    return {"name": row.get("name") or text, "spec": spec, "step_seconds": float(row["step_seconds"])}


def compared(
    records: Iterable[Record], profile: str = "", estimate: Estimator | None = None
) -> tuple[list[Comparison], list[tuple[str, str]]]:
    """The comparisons, and (name, reason) of the records that give none."""
    estimate = estimate or importlib.import_module("planner.evaluate").estimate
    comparisons, left_out = [], []
    for record in records:
        name = str(record.get("name", "?"))
        if not record.get("step_seconds"):
            left_out.append((name, "out of memory" if record.get("oom") else str(record.get("error", "no step time"))))
            continue
        try:
            answer = estimate(record["spec"], profile=profile) if profile else estimate(record["spec"])
            comparisons.append(_comparison(name, record, answer))
        except RigplanError as error:
            left_out.append((name, str(error)))
    return comparisons, left_out


def _comparison(name: str, record: Record, answer: Any) -> Comparison:
    step, strategy, memory = answer.step, answer.strategy, answer.memory
    phases = {
        phase: (getattr(step, f"{phase}_seconds"), record[f"{phase}_seconds"])
        for phase in PHASES
        if record.get(f"{phase}_seconds")
    }
    peak = record.get("peak_allocated_bytes")
    spec = record["spec"]
    model = spec.get("model", {}) if isinstance(spec, Mapping) else {}
    config = model.get("config") if isinstance(model.get("config"), Mapping) else {}
    named = record.get("family") or (config or {}).get("model_type") or model.get("name") or model.get("module")
    knobs = [strategy.precision, strategy.optimizer, f"micro-batch {strategy.micro_batch}"]
    knobs += [f"checkpointing {strategy.checkpointing}"] if strategy.checkpointing != "none" else []
    knobs += ["compile"] if strategy.compile else []
    return Comparison(
        name=name,
        gpu=str(answer.hardware.gpu),
        family=str(named or name),
        knobs=tuple(knobs),
        measured_s=float(record["step_seconds"]),
        predicted_s=step.seconds,
        low_s=step.low_seconds,
        high_s=step.high_seconds,
        host_bound=step.host_bound_share > HOST_BOUND_SHARE,
        phases=phases,
        peak_bytes=(memory.peak_allocated_bytes, peak) if peak else None,
        known=step.known,
    )


def report(cases: list[Comparison], left_out: list[tuple[str, str]]) -> Iterator[str]:
    """Lines to print: the total, device-bound and host-bound apart, then by group, then the worst cases."""
    from tabulate import tabulate

    if not cases:
        yield "no run could be compared"
    else:
        groups = {
            "device-bound": [case for case in cases if not case.host_bound],
            "host-bound": [c for c in cases if c.host_bound],
        }
        yield tabulate([_row(name, group) for name, group in groups.items() if group], headers=HEADERS)
        for title, key in (("GPU", _gpus), ("family", _families), ("knob", _knobs)):
            yield ""
            yield tabulate(
                [_row(name, group) for name, group in _worst_first(cases, key)], headers=(title, *HEADERS[1:])
            )
        yield ""
        yield tabulate(
            [_case(case) for case in sorted(cases, key=lambda case: -abs(case.error))[:WORST]], headers=CASE_HEADERS
        )
    for name, reason in left_out:
        yield f"left out {name}: {reason[:200]}"


HEADERS = (
    "step time",
    "runs",
    "mean error",
    "p90",
    "worst",
    "bias",
    "in range",
    "forward",
    "backward",
    "optimizer",
    "peak memory",
)
CASE_HEADERS = ("run", "predicted ms", "measured ms", "error", "range ms", "known")


def _row(name: str, cases: list[Comparison]) -> tuple[str, ...]:
    errors = sorted(abs(case.error) for case in cases)
    phases = (_phase(cases, phase) for phase in PHASES)
    peaks = [abs(case.peak_bytes[0] / case.peak_bytes[1] - 1) for case in cases if case.peak_bytes]
    return (
        name,
        str(len(cases)),
        f"{statistics.mean(errors):.1%}",
        f"{errors[min(len(errors) - 1, round(0.9 * (len(errors) - 1)))]:.1%}",
        f"{errors[-1]:.1%}",
        f"{statistics.mean(case.error for case in cases):+.1%}",
        f"{statistics.mean(case.covered for case in cases):.0%}",
        *phases,
        f"{statistics.mean(peaks):.1%}" if peaks else "",
    )


def _phase(cases: list[Comparison], phase: str) -> str:
    errors = [
        abs(predicted / measured - 1)
        for case in cases
        if phase in case.phases
        for predicted, measured in [case.phases[phase]]
    ]
    return f"{statistics.mean(errors):.1%}" if errors else ""


def _case(case: Comparison) -> tuple[str, ...]:
    return (
        case.name,
        f"{1000 * case.predicted_s:.2f}",
        f"{1000 * case.measured_s:.2f}",
        f"{case.error:+.1%}" + (" host-bound" if case.host_bound else ""),
        f"{1000 * case.low_s:.2f} to {1000 * case.high_s:.2f}",
        case.known,
    )


def _worst_first(
    cases: list[Comparison], key: Callable[[Comparison], tuple[str, ...]]
) -> list[tuple[str, list[Comparison]]]:
    groups: dict[str, list[Comparison]] = defaultdict(list)
    for case in cases:
        for name in key(case):
            groups[name].append(case)
    return sorted(groups.items(), key=lambda pair: -statistics.mean(abs(case.error) for case in pair[1]))


def _gpus(case: Comparison) -> tuple[str, ...]:
    return (case.gpu,)


def _families(case: Comparison) -> tuple[str, ...]:
    return (case.family,)


def _knobs(case: Comparison) -> tuple[str, ...]:
    return case.knobs
