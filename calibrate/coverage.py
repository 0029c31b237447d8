"""Coverage: how wide a step's range has to be, learned from runs that nothing was fitted to.

Published runs (RUNS of `calibrate.published`) are priced as any user's; a device's own runs (OWN of `calibrate train`)
as models that its calibration has not seen. The range of a class of estimates is the shortest that holds a share of its
measured steps; the share is such that it holds nine of ten runs of a GPU, or of a family of models, that was left out.

    python -m calibrate.coverage RUNS.jsonl OWN.jsonl[,OWN.jsonl] PROFILE [SAVED]
    python -m calibrate.coverage PREDICTIONS.jsonl

The first writes the predictions beside RUNS and the ranges into the catalog; workloads traced once are kept in SAVED.
The second works the ranges out again from predictions that are there.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from calibrate import leave_out
from catalog.errors import RigplanError
from catalog.store import DATA
from planner import machine as machines
from planner.answer import weakest
from planner.answers import peak_flop_per_s, range_class
from planner.cache import Workloads
from planner.evaluate import knobs_of, not_possible, of_rank
from planner.spec import Spec
from planner.step import StepTime, step_time
from planner.strategy import batch_plan, choices
from planner.workload import Workload

RANGES = DATA / "ranges.yaml"
PREDICTIONS = "predictions.jsonl"
INSIDE = 0.90  # of the runs left out that a range should hold
LEVELS = np.linspace(0.80, 1.0, 41)  # shares of the known runs, of which the one that holds INSIDE of the others
FEWEST = 12  # runs that make a class of their own
USUAL_MFU = 0.4  # of the rule of thumb: 6 FLOP a parameter and token
HEADER = (
    "# Written by `python -m calibrate.coverage`: measured over predicted seconds of a step, 90 % of runs within.\n"
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A run with its predicted and measured seconds; `rules` are what people use instead, `group` what is left out
    together with it, `libraries` what it says it ran under."""

    name: str
    source: str
    gpu: str
    family: str
    precision: str
    compiled: bool
    known: str
    host_bound_share: float
    predicted_seconds: float
    measured_seconds: float
    group: str
    samples: int = 0
    rules: dict[str, float] = field(default_factory=dict)
    libraries: str = ""

    @property
    def ratio(self) -> float:
        """Logarithm of measured over predicted."""
        return float(np.log(self.measured_seconds / self.predicted_seconds))

    @property
    def range_class(self) -> tuple[str, str]:
        return self.known, range_class(self.host_bound_share, compiled=self.compiled)


def published(records: Iterable[Mapping[str, Any]], saved: dict[str, Any]) -> Iterator[Prediction]:
    """Every record that can be asked, priced like a user's question; the others are told on standard error."""
    shared: dict[str, Workloads] = {}
    for record in records:
        try:
            yield _published(record, saved, shared)
        except RigplanError as error:
            print(f"left out {record['name']}: {str(error).splitlines()[0]}", file=sys.stderr)


def _published(record: Mapping[str, Any], saved: dict[str, Any], shared: dict[str, Workloads]) -> Prediction:
    spec = Spec.load(record["spec"])
    strategy, choice = next(iter(choices(spec)))
    machine = machines.resolve(choice)
    reason, batches = not_possible(strategy, machine), batch_plan(strategy, machine.choice)
    if reason or isinstance(batches, str):
        raise RigplanError(reason or str(batches))
    key = json.dumps([record["spec"]["model"], record["spec"].get("data"), str(knobs_of(strategy, machine))])
    place = f"{key} {batches.micro_batch}"
    if place not in saved:
        asked = json.dumps([record["spec"]["model"], record["spec"].get("data")])
        workloads = shared.setdefault(asked, Workloads(spec.model, spec.data))
        saved[place] = workloads.searched(knobs_of(strategy, machine), batches.micro_batch)
    workload: Workload = of_rank(saved[place], strategy, machine)
    time = step_time(workload, machine.pricing(tf32=strategy.precision == "tf32"), accumulation=batches.accumulation)
    whole = "gradient_seconds" not in record
    predicted = time.seconds if whole else time.forward_seconds + time.backward_seconds
    measured = float(record["step_seconds"] if whole else record["gradient_seconds"])
    tokens = batches.global_batch * workload.samples_to_tokens
    rules = _rules(time, peak_flop_per_s(workload, machine), workload, tokens)
    return Prediction(
        name=str(record["name"]),
        source=str(record["source"]),
        gpu=machine.accelerator.name,
        family=str(record["family"]),
        precision=strategy.precision,
        compiled=strategy.compile,
        known=weakest(*time.words),  # type: ignore[arg-type]
        host_bound_share=time.host_bound_share,
        predicted_seconds=predicted,
        measured_seconds=measured,
        group=machine.accelerator.name,
        samples=batches.global_batch,
        rules={name: value * predicted / time.seconds for name, value in rules.items()},
        libraries=str(record.get("libraries", "")),
    )


def _rules(time: StepTime, peak: float, workload: Workload, tokens: int) -> dict[str, float]:
    """Seconds by FLOP over the peak, by a roofline operator by operator, and by 6 FLOP a parameter and token."""
    found = {"naive": time.flop / peak, "roofline": time.floor_seconds}
    if workload.samples_to_tokens > 1:
        found["6ND"] = 6.0 * workload.parameter_count * tokens / (USUAL_MFU * peak)
    return found


def own(records: Sequence[Mapping[str, Any]], profile: str, saved: dict[str, Any]) -> Iterator[Prediction]:
    """A calibrated device's own runs, each priced without what was timed of its model."""
    by_name = {str(record["name"]): record for record in records}
    for run in leave_out.held(records, profile, saved):
        strategy, choice = next(iter(choices(Spec.load(by_name[run.name]["spec"]))))
        family = run.name.split("-")[0] if run.family == "module" else run.family  # a module is no family
        yield Prediction(
            name=run.name,
            source="rigplan calibrate train",
            gpu=choice.gpu,
            family=family,
            precision=strategy.precision,
            compiled=strategy.compile,
            known="measured",
            host_bound_share=run.host_bound_share,
            predicted_seconds=run.left_out_seconds,
            measured_seconds=run.measured_seconds,
            group=family,
        )


def ranges(predictions: Sequence[Prediction]) -> dict[str, dict[str, Any]]:
    """The range of each class; a class of few runs takes that of all runs known as well, wide enough for its own.

    A calibrated device's range comes from its own runs: those of others differ in framework too.
    """
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for known in dict.fromkeys(item.known for item in predictions):
        every = [item for item in predictions if item.known == known and (known != "measured" or not item.rules)]
        for name in dict.fromkeys(item.range_class[1] for item in every):
            part = [item for item in every if item.range_class[1] == name]
            fitted = _fitted(part) if len(part) >= FEWEST else _widened(_fitted(every), part)
            found[known][name] = {**fitted, "runs": len(part)}
    return dict(found)


def _fitted(part: Sequence[Prediction]) -> dict[str, float]:
    """The shortest range that holds as many of the runs left out as so few runs can tell from INSIDE."""
    least = INSIDE - float(np.sqrt(INSIDE * (1 - INSIDE) / len(part)))
    level = next((float(level) for level in LEVELS if _left_out(part, level) >= least), float(LEVELS[-1]))
    low, high = _shortest([item.ratio for item in part], level)
    return {
        "low": float(f"{np.exp(low):.4g}"),
        "high": float(f"{np.exp(high):.4g}"),
        "coverage": float(f"{_left_out(part, level):.3g}"),
    }


def _widened(fitted: Mapping[str, float], part: Sequence[Prediction]) -> dict[str, float]:
    """A range of others that holds INSIDE of these runs too: few as they are, they may lie apart from the others."""
    low, high = np.exp(_shortest([item.ratio for item in part], INSIDE))
    return {
        **fitted,
        "low": min(fitted["low"], float(f"{low:.4g}")),
        "high": max(fitted["high"], float(f"{high:.4g}")),
    }


def _left_out(part: Sequence[Prediction], level: float) -> float:
    """Share of the runs that lie in the range of the runs of other groups."""
    inside = 0
    for group in {item.group for item in part}:
        rest = [item.ratio for item in part if item.group != group]
        low, high = _shortest(rest, level) if rest else (-np.inf, np.inf)
        inside += sum(low <= item.ratio <= high for item in part if item.group == group)
    return inside / len(part)


def _shortest(ratios: Sequence[float], level: float) -> tuple[float, float]:
    """The shortest range that holds this share of the runs, and the prediction itself."""
    ordered = np.sort(ratios)
    held = min(len(ordered), int(np.ceil(level * len(ordered))))
    lows, highs = ordered[: len(ordered) - held + 1], ordered[held - 1 :]
    at = int(np.argmin(highs - lows))
    return min(float(lows[at]), 0.0), max(float(highs[at]), 0.0)


def covered(predictions: Sequence[Prediction], table: Mapping[str, Mapping[str, Any]]) -> float:
    """Share of runs in their ranges."""
    inside = [
        row["low"] <= np.exp(item.ratio) <= row["high"]
        for item in predictions
        if (row := table.get(item.known, {}).get(item.range_class[1])) is not None
    ]
    return float(np.mean(inside)) if inside else float("nan")


def read(path: Path) -> list[Prediction]:
    """Predictions as they were written."""
    return [Prediction(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def main(arguments: Sequence[str], tell: Callable[[str], None] = print) -> int:
    if len(arguments) == 1:
        write_ranges(read(Path(arguments[0])), tell)
        return 0
    if len(arguments) not in (3, 4):
        print("usage: python -m calibrate.coverage RUNS.jsonl OWN.jsonl[,...] PROFILE [SAVED]", file=sys.stderr)
        return 2
    runs, profile = Path(arguments[0]), arguments[2]
    kept = Path(arguments[3]) if len(arguments) == 4 else None
    saved: dict[str, Any] = pickle.loads(kept.read_bytes()) if kept and kept.exists() else {}
    trained = [line for name in arguments[1].split(",") for line in _lines(Path(name))]
    found: list[Prediction] = []
    for some in (published(_lines(runs), saved), own(trained, profile, saved)):
        found += some
        if kept:
            kept.write_bytes(pickle.dumps(saved))
    text = "".join(json.dumps(_short(asdict(item))) + "\n" for item in found)
    runs.with_name(PREDICTIONS).write_text(text, encoding="utf-8")
    write_ranges(found, tell)
    return 0


def write_ranges(found: Sequence[Prediction], tell: Callable[[str], None] = print) -> None:
    """The ranges of these predictions, into the catalog beside those of classes that have no runs."""
    table = ranges(found)
    old: dict[str, Any] = yaml.safe_load(RANGES.read_text(encoding="utf-8"))
    text = yaml.safe_dump({**old, **table}, sort_keys=False, default_flow_style=None)
    RANGES.write_text(HEADER + text, encoding="utf-8")
    for known, rows in table.items():
        for name, row in rows.items():
            within = f"{row['runs']:4} runs, {row['coverage']:.0%} of those left out within"
            tell(f"{known:12}{name:10}{row['low']:7.3f} to {row['high']:6.3f}  {within}")


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
