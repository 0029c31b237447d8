"""Check: predicted against measured. Errors of step, phases and peaks by GPU, family and knob; verdicts on memory."""

from __future__ import annotations

import csv
import importlib
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from calibrate import published
from catalog.errors import RigplanError
from planner.workers import forked

HOST_BOUND = 0.9  # of a measured step spent issuing it, from which on the host was the limit
PREDICTED_HOST_BOUND = 0.5  # of a predicted step spent waiting for the host; asked where a record does not say
PHASES = ("forward", "backward", "optimizer")
# What is compared: the answer's part and field, and the record's field.
QUANTITIES = {
    "step": ("step", "seconds", "step_seconds"),
    "forward": ("step", "forward_seconds", "forward_seconds"),
    "backward": ("step", "backward_seconds", "backward_seconds"),
    "optimizer": ("step", "optimizer_seconds", "optimizer_seconds"),
    "peak allocated": ("memory", "peak_allocated_bytes", "peak_allocated_bytes"),
    "peak reserved": ("memory", "peak_reserved_bytes", "peak_reserved_bytes"),
    "device memory": ("memory", "device_bytes", "device_bytes"),
}
TIMES = ("step", *PHASES)
PEAKS = ("peak allocated", "peak reserved", "device memory")
GRADIENTS = "gradient_seconds"  # a record's forward and backward together, without an optimizer step
CSV_NUMBERS = ("host_seconds", *(field for _, _, field in QUANTITIES.values()))
WORST = 12  # cases named one by one
WORKERS = 2  # each holds torch, about a gigabyte, while it traces

Record = dict[str, Any]
Estimator = Callable[..., Any]
LeftOut = tuple[str, str]  # name and reason
Report = Callable[[int, int, str], None]  # done, of, name


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run: (predicted, measured) by quantity, seconds and bytes; what was not measured is not in it."""

    name: str
    gpu: str
    family: str
    knobs: tuple[str, ...]
    pairs: dict[str, tuple[float, float]]
    low_s: float | None
    high_s: float | None
    host_bound: bool
    verdict: str
    out_of_memory: bool
    known: str
    source: str = ""

    def error(self, quantity: str = "step") -> float:
        """Signed, relative to what was measured."""
        predicted, measured = self.pairs[quantity]
        return predicted / measured - 1

    @property
    def covered(self) -> bool | None:
        """Whether the measured step lies in the predicted range; None where no step was timed."""
        if "step" not in self.pairs or self.low_s is None or self.high_s is None:
            return None
        return self.low_s <= self.pairs["step"][1] <= self.high_s

    @property
    def memory(self) -> str:
        """right, wrong or borderline: what the verdict said of a run that fitted or ran out of memory."""
        if self.verdict == "borderline":
            return "borderline"
        return "right" if (self.verdict == "does-not-fit") == self.out_of_memory else "wrong"

    def as_json(self) -> Record:
        errors = {name: self.error(name) for name in self.pairs}
        return asdict(self) | {"errors": errors, "covered": self.covered, "memory": self.memory}


def read(path: Path) -> list[Record]:
    """Records of `calibrate train`, of a published table, or of a CSV with `spec` (JSON, or a path beside it) and
    `step_seconds`."""
    if path.suffix.lower() == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if published.schema(rows.fieldnames or ()):
                return published.records(rows)
            return [_from_csv(row, path) for row in rows]
    records = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            records.append(line.get("training", line))
        except (ValueError, AttributeError):
            raise RigplanError(
                f"{path}:{number}: found no JSON; wanted one record of `calibrate train` a line"
            ) from None
    return [record for record in records if "spec" in record]  # a calibration's file also holds its kernels


def _from_csv(row: Mapping[str, str], path: Path) -> Record:
    if not row.get("spec") or not (row.get("step_seconds") or row.get("oom")):
        raise RigplanError(f"{path}: found columns {', '.join(row)}; wanted at least spec and step_seconds")
    text = row["spec"]
    try:
        spec: Any = json.loads(text) if text.lstrip().startswith("{") else str(path.parent / text)
        numbers = {name: float(row[name]) for name in CSV_NUMBERS if row.get(name)}
    except ValueError as error:
        raise RigplanError(f"{path}: found {error}; wanted a spec and numbers in seconds and bytes") from None
    oom = {"oom": True} if str(row.get("oom", "")).lower() in ("1", "true", "yes") else {}
    return {"name": row.get("name") or text, "spec": spec, **numbers, **oom}


def chosen(records: Sequence[Record], names: Sequence[str]) -> list[Record]:
    """The records of these names, in which * stands for anything; all without a name. RigplanError when none is."""
    if not names:
        return list(records)
    found = [record for record in records if any(fnmatchcase(str(record.get("name", "")), name) for name in names)]
    if not found:
        known = ", ".join(str(record.get("name", "?")) for record in records[:WORST])
        raise RigplanError(f"found no run named {' or '.join(names)}; wanted one of {known}")
    return found


def compared(
    records: Sequence[Record],
    profile: str = "",
    estimate: Estimator | None = None,
    *,
    workers: int = 1,
    report: Report = lambda done, total, name: None,
) -> tuple[list[Comparison], list[LeftOut]]:
    """The comparisons in the order of the records, and (name, reason) of the records that give none."""
    compare = partial(_compare, profile=profile, estimate=estimate)
    found: list[Comparison | LeftOut] = []
    for number, outcome in enumerate(_mapped(compare, records, min(workers, len(records))), 1):
        report(number, len(records), outcome.name if isinstance(outcome, Comparison) else outcome[0])
        found.append(outcome)
    return (
        [item for item in found if isinstance(item, Comparison)],
        [item for item in found if not isinstance(item, Comparison)],
    )


def _mapped(
    compare: Callable[[Record], Comparison | LeftOut], records: Sequence[Record], workers: int
) -> Iterator[Comparison | LeftOut]:
    if workers < 2:
        yield from map(compare, records)
        return
    with forked(workers, lambda _: None, models=True) as pool:
        yield from pool.imap(compare, records)


def _compare(record: Record, profile: str, estimate: Estimator | None) -> Comparison | LeftOut:
    name, oom = str(record.get("name", "?")), bool(record.get("oom"))
    if not record.get("step_seconds") and not record.get(GRADIENTS) and not oom:
        return name, str(record.get("message") or record.get("error") or "no step time")
    try:
        ask = estimate or partial(importlib.import_module("planner.search").estimate, read_off=True)
        return _comparison(name, record, ask(_limited(record), profile=profile, timed=not oom))
    except RigplanError as error:
        return name, str(error)


def _limited(record: Record) -> Any:
    """The record's spec; where the run was held within less memory, with that limit."""
    spec, limit = record["spec"], record.get("limit_bytes")
    if limit is None or not isinstance(spec, Mapping):
        return spec
    hardware = spec["hardware"][0] if isinstance(spec["hardware"], list) else spec["hardware"]
    return {**spec, "hardware": {**hardware, "memory_limit": int(limit)}}


def _comparison(name: str, record: Record, answer: Any) -> Comparison:
    strategy, spec, step = answer.strategy, record["spec"], answer.step
    pairs = {
        quantity: (float(getattr(getattr(answer, part), field)), float(record[measured]))
        for quantity, (part, field, measured) in QUANTITIES.items()
        if record.get(measured) and not record.get("oom")
    }
    if record.get(GRADIENTS):
        pairs["step"] = (step.forward_seconds + step.backward_seconds, float(record[GRADIENTS]))
    model = spec.get("model", {}) if isinstance(spec, Mapping) else {}
    config = model.get("config") if isinstance(model.get("config"), Mapping) else {}
    named = record.get("family") or (config or {}).get("model_type") or model.get("name") or model.get("module")
    knobs = [strategy.precision, f"{strategy.optimizer} {strategy.optimizer_implementation}"]
    knobs += [f"checkpointing {strategy.checkpointing}"] if strategy.checkpointing != "none" else []
    knobs += ["accumulation"] if (strategy.accumulation or 1) > 1 else []
    knobs += ["compile"] if strategy.compile else []
    host = record.get("host_seconds")
    part = pairs["step"][0] / step.seconds if step is not None and "step" in pairs else 1.0
    return Comparison(
        name=name,
        gpu=str(answer.hardware.gpu),
        family=str(named or name),
        knobs=tuple(knobs),
        pairs=pairs,
        low_s=None if step is None else step.low_seconds * part,
        high_s=None if step is None else step.high_seconds * part,
        host_bound=host / record["step_seconds"] > HOST_BOUND
        if host and record.get("step_seconds")
        else step is not None and step.host_bound_share > PREDICTED_HOST_BOUND,
        verdict=answer.verdict,
        out_of_memory=bool(record.get("oom")),
        known=answer.memory.known if step is None else step.known,
        source=str(record.get("source", "")),
    )


def report(cases: Sequence[Comparison], left_out: Sequence[LeftOut]) -> Iterator[str]:
    """Lines to print: totals, device-bound and host-bound apart; groups and cases, worst first; the verdicts."""
    from tabulate import tabulate

    if not cases:
        yield "no run could be compared"
    timed = [case for case in cases if "step" in case.pairs]
    if timed:
        yield tabulate(_totals(timed), headers=TOTAL_HEADERS, disable_numparse=True)
        for title, key in GROUPS.items():
            rows = [_group(name, group) for name, group in _worst_first(timed, key)]
            if not rows:
                continue
            yield ""
            yield tabulate(rows, headers=(title, *GROUP_HEADERS), disable_numparse=True)
        yield ""
        worst = sorted(timed, key=lambda case: -abs(case.error()))[:WORST]
        yield tabulate([_case(case) for case in worst], headers=CASE_HEADERS, disable_numparse=True)
    if cases:
        yield ""
        yield from _verdicts(cases)
    for name, reason in left_out:
        yield f"left out {name}: {reason[:200]}"


TOTAL_HEADERS = ("error of", "runs", "mean", "p90", "worst", "worst run", "bias", "in range")
GROUP_HEADERS = ("runs", "step mean", "step worst", *PHASES, *PEAKS)
CASE_HEADERS = ("worst steps", "predicted ms", "measured ms", "error", "range ms", "limit", "known")
GROUPS: dict[str, Callable[[Comparison], tuple[str, ...]]] = {
    "GPU": lambda case: (case.gpu,),
    "family": lambda case: (case.family,),
    "source": lambda case: (case.source,) if case.source else (),
    "knob": lambda case: case.knobs,
}


def _totals(cases: Sequence[Comparison]) -> Iterator[tuple[str, ...]]:
    for bound, host in (("device-bound", False), ("host-bound", True)):
        group = [case for case in cases if case.host_bound is host]
        for quantity in TIMES:
            yield from _total(f"{quantity}, {bound}", quantity, group)
    for quantity in PEAKS:
        yield from _total(quantity, quantity, cases)


def _total(title: str, quantity: str, cases: Iterable[Comparison]) -> Iterator[tuple[str, ...]]:
    found = sorted((case for case in cases if quantity in case.pairs), key=lambda case: abs(case.error(quantity)))
    if not found:
        return
    errors = [abs(case.error(quantity)) for case in found]
    inside = [case.covered for case in found if case.covered is not None]
    yield (
        title,
        str(len(found)),
        f"{statistics.mean(errors):.1%}",
        f"{np.quantile(errors, 0.9):.1%}",
        f"{errors[-1]:.1%}",
        found[-1].name,
        f"{statistics.mean(case.error(quantity) for case in found):+.1%}",
        f"{statistics.mean(inside):.0%}" if quantity == "step" and inside else "",
    )


def _group(name: str, cases: Sequence[Comparison]) -> tuple[str, ...]:
    means = (_mean(cases, quantity) for quantity in (*PHASES, *PEAKS))
    worst = max(abs(case.error()) for case in cases)
    return name, str(len(cases)), _mean(cases, "step"), f"{worst:.1%}", *means


def _mean(cases: Sequence[Comparison], quantity: str) -> str:
    errors = [abs(case.error(quantity)) for case in cases if quantity in case.pairs]
    return f"{statistics.mean(errors):.1%}" if errors else ""


def _case(case: Comparison) -> tuple[str, ...]:
    predicted, measured = case.pairs["step"]
    limits = f"{1000 * (case.low_s or 0):.1f} to {1000 * (case.high_s or 0):.1f}"
    limit = "host" if case.host_bound else "device"
    return (
        case.name,
        f"{1e3 * predicted:.2f}",
        f"{1e3 * measured:.2f}",
        f"{case.error():+.1%}",
        limits,
        limit,
        case.known,
    )


def _verdicts(cases: Sequence[Comparison]) -> Iterator[str]:
    """What was said of the runs that ran out of memory, and of those that did not."""
    for title, ran_out in (("ran out of memory", True), ("fitted", False)):
        group = [case for case in cases if case.out_of_memory is ran_out]
        if not group:
            continue
        counts = {word: sum(case.memory == word for case in group) for word in ("right", "borderline", "wrong")}
        told = ", ".join(f"{count} {word}" for word, count in counts.items())
        wrong = ", ".join(case.name for case in group if case.memory == "wrong")
        yield f"verdict on {len(group)} runs that {title}: {told}" + (f" ({wrong})" if wrong else "")


def _worst_first(
    cases: Sequence[Comparison], key: Callable[[Comparison], tuple[str, ...]]
) -> list[tuple[str, list[Comparison]]]:
    groups: dict[str, list[Comparison]] = defaultdict(list)
    for case in cases:
        for name in key(case):
            groups[name].append(case)
    return sorted(groups.items(), key=lambda pair: -statistics.mean(abs(case.error()) for case in pair[1]))
