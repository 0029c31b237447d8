"""Log: seconds per step out of a pasted training log, against a spec's estimate: a correction with its range."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from catalog.errors import RigplanError

Unit = Literal["s", "ms", "step/s", "samples/s", "tokens/s", "tokens/s/gpu"]

WARM_UP_SHARE = 0.1  # of a log, dropped from its start: compilation, allocator and data loader settle
FEWEST = 3  # readings, below which none is dropped
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
NUMBER = r"([\d,]*\.?\d+(?:e[+-]?\d+)?)"

# name, what a match's number counts, pattern; the first dialect that matches a log is taken. Numbers of one line each,
# save tqdm's bar, whose rate is a running mean. `total` tells the training's bar from those of loading and evaluation.
DIALECTS: tuple[tuple[str, Unit, str], ...] = (
    ("nanoGPT", "ms", rf"\biter \d+: loss \S+, time {NUMBER}ms"),
    ("Megatron", "ms", rf"elapsed time per iteration \(ms\): {NUMBER}"),
    ("torchtitan", "tokens/s/gpu", rf"\bstep:\s*\d+\b.*?\btps: {NUMBER}"),
    ("llm.c", "ms", rf"\bstep\s+\d+/\d+ \|.*?\| {NUMBER} ms \|"),
    ("tqdm", "s", rf"\|\s*\d+/(?P<total>\d+) \[[^\]]*?, *{NUMBER}s/it"),
    ("tqdm", "step/s", rf"\|\s*\d+/(?P<total>\d+) \[[^\]]*?, *{NUMBER}it/s"),
    ("transformers Trainer", "samples/s", rf"'train_samples_per_second': '?{NUMBER}"),
    ("transformers Trainer", "step/s", rf"'train_steps_per_second': '?{NUMBER}"),
    ("DeepSpeed", "samples/s", rf"CurrSamplesPerSec={NUMBER}"),
    ("milliseconds per step", "ms", rf"{NUMBER} ?ms ?(?:/|per ) ?(?:step|iter|iteration|it)\b"),
    ("seconds per step", "s", rf"{NUMBER} ?(?:s|sec|seconds) ?(?:/|per ) ?(?:step|iter|iteration|it)\b"),
    ("step time", "ms", rf"\bstep[_ ](?:time|avg)[ :=]+{NUMBER} ?ms\b"),
    ("step time", "s", rf"\bstep[_ ](?:time|avg)[ :=]+{NUMBER} ?s\b"),
    ("tokens per second and GPU", "tokens/s/gpu", rf"{NUMBER} ?tok(?:en)?s? ?(?:/|per ) ?s(?:ec)?/(?:gpu|device)\b"),
    ("tokens per second", "tokens/s", rf"{NUMBER} ?tok(?:en)?s? ?(?:/|per ) ?s(?:ec(?:ond)?)?\b"),
    ("tokens per second", "tokens/s", rf"\btokens?(?:/|_per_)s(?:ec(?:ond)?)?['\" :=]+{NUMBER}"),
    ("samples per second", "samples/s", rf"{NUMBER} ?samples? ?(?:/|per ) ?s(?:ec(?:ond)?)?\b"),
)  # fmt: skip
AVERAGES = ("transformers Trainer",)  # one number over the whole run, with its start, evaluations and saves
CAUTION = {
    "tqdm": "a bar's iteration is taken for one optimizer step; where it is a micro-step, add --micro-steps",
    "tokens per second": "tokens/s is taken for the whole machine, not for one GPU",
    "transformers Trainer": "the Trainer's number is a mean over the whole run, with its start, evaluations and saves",
}


@dataclass(frozen=True, slots=True)
class Batch:
    """What one optimizer step takes in, over all GPUs; tokens are None where samples are not sequences."""

    samples: int
    tokens: float | None
    gpus: int
    accumulation: int = 1


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds per optimizer step that a log tells: the median of `count` readings with its quartiles."""

    dialect: str
    unit: Unit
    count: int
    dropped: int
    seconds: float
    low_seconds: float
    high_seconds: float


@dataclass(frozen=True, slots=True)
class Correction:
    """What to multiply the estimate of a spec by, and what the log's quartiles make of it."""

    reading: Reading
    predicted_seconds: float
    ratio: float
    low_ratio: float
    high_ratio: float
    inside: bool  # the estimate's own range holds the median

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def found(text: str) -> tuple[str, Unit, list[float]]:
    """The dialect of a log, its unit and its numbers in order. RigplanError when no dialect matches."""
    lines = [line for line in re.split(r"[\r\n]+", COLOURS.sub("", text)) if line.strip()]
    for name, group in _by_dialect().items():
        best: tuple[Unit, list[float]] = ("s", [])
        for unit, pattern in group:
            values = _values(lines, pattern)
            if len(values) > len(best[1]):  # a bar turns from s/it to it/s; the unit it mostly had is taken
                best = unit, values
        if best[1]:
            return name, *best
    known = ", ".join(_by_dialect())
    raise RigplanError(f"found no step time in the log's {len(lines)} lines; wanted one of: {known}")


def _by_dialect() -> dict[str, list[tuple[Unit, str]]]:
    groups: dict[str, list[tuple[Unit, str]]] = {}
    for name, unit, pattern in DIALECTS:
        groups.setdefault(name, []).append((unit, pattern))
    return groups


def _values(lines: list[str], pattern: str) -> list[float]:
    matches = [match for line in lines for match in re.finditer(pattern, line, re.IGNORECASE)]
    totals = [int(match["total"]) for match in matches if "total" in match.re.groupindex]
    if totals:
        matches = [match for match in matches if int(match["total"]) == max(totals)]
    numbers = (float(match.groups()[-1].replace(",", "")) for match in matches)
    return [number for number in numbers if number > 0]


def read(text: str, batch: Batch, *, micro_steps: bool = False) -> Reading:
    """Seconds per optimizer step of a log. `micro_steps`: its iterations are micro-steps, several to a step."""
    dialect, unit, values = found(text)
    convert = _converter(unit, batch)
    per_step = batch.accumulation if micro_steps and unit in ("s", "ms", "step/s") else 1
    seconds = [per_step * convert(value) for value in values]
    dropped = math.ceil(WARM_UP_SHARE * len(seconds)) if len(seconds) >= FEWEST else 0
    kept = seconds[dropped:]
    low, middle, high = statistics.quantiles(kept, n=4, method="inclusive") if len(kept) > 1 else kept * 3
    return Reading(dialect, unit, len(kept), dropped, middle, low, high)


def _converter(unit: Unit, batch: Batch) -> Callable[[float], float]:
    """From a log's number to seconds per optimizer step."""
    if unit in ("tokens/s", "tokens/s/gpu") and batch.tokens is None:
        raise RigplanError(f"found {unit} in the log, and the spec has no sequences; wanted times or samples/s")
    tokens = batch.tokens or 0.0
    table: Mapping[Unit, Callable[[float], float]] = {
        "s": lambda value: value,
        "ms": lambda value: value / 1000,
        "step/s": lambda value: 1 / value,
        "samples/s": lambda value: batch.samples / value,
        "tokens/s": lambda value: tokens / value,
        "tokens/s/gpu": lambda value: tokens / (value * batch.gpus),
    }
    return table[unit]


def batch_of(answer: Any) -> Batch:
    """The batch of an estimate (planner.answer.Estimate)."""
    strategy, count, throughput = answer.strategy, answer.hardware.count, answer.throughput
    rate = throughput.tokens_per_second_per_gpu
    tokens = None if rate is None else rate * count * answer.step.seconds
    return Batch(strategy.global_batch, tokens, count, strategy.accumulation or 1)


def corrected(reading: Reading, answer: Any) -> Correction:
    """The log against the estimate. RigplanError when the log is faster than the device could ever be."""
    step = answer.step
    if reading.seconds < step.floor_seconds:
        raise RigplanError(
            f"found {_ms(reading.seconds)} a step in the log ({reading.dialect}), below the physical floor of "
            f"{_ms(step.floor_seconds)}: {answer.hardware.gpu} needs that for the spec's arithmetic and bytes alone. "
            "The log's step is another one (model, batch, lengths, number of GPUs, micro-steps: --micro-steps), or its "
            "timer did not wait for the device"
        )
    return Correction(
        reading,
        step.seconds,
        ratio=reading.seconds / step.seconds,
        low_ratio=reading.low_seconds / step.seconds,
        high_ratio=reading.high_seconds / step.seconds,
        inside=step.low_seconds <= reading.seconds <= step.high_seconds,
    )


def report(correction: Correction, answer: Any) -> Iterator[str]:
    """Lines to print: what the log says, what the estimate says, the correction and how to use it."""
    reading, step = correction.reading, answer.step
    warm = f", the first {reading.dropped} dropped" if reading.dropped else ""
    yield (
        f"log:        {_ms(reading.seconds)} a step ({_ms(reading.low_seconds)} to {_ms(reading.high_seconds)}), "
        f"{reading.count} readings of {reading.dialect} in {reading.unit}{warm}"
    )
    yield f"estimate:   {_ms(step.seconds)} a step ({_ms(step.low_seconds)} to {_ms(step.high_seconds)}), {step.known}"
    ratio = f"{correction.low_ratio:.3g} to {correction.high_ratio:.3g}"
    yield f"correction: x {correction.ratio:.3g} ({ratio}); the estimate's range {_held(correction)} the log"
    yield (
        f"Multiply the seconds, days, GPU-hours and USD of this spec by {correction.ratio:.3g}, and its range by "
        f"{ratio}. It holds for this model, batch and machine; it also carries what the estimate leaves out, such as "
        "data loading."
    )
    if reading.dialect in CAUTION:
        yield f"note: {CAUTION[reading.dialect]}"
    if reading.count == 1 and reading.dialect not in AVERAGES:
        yield "note: one reading has no quartiles; a longer log gives the correction a range"


def _held(correction: Correction) -> str:
    return "holds" if correction.inside else "does not hold"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.4g} ms" if seconds < 10 else f"{seconds:.4g} s"
