"""Accuracy: how far predictions are from real runs, as a page: `python -m calibrate.accuracy PREDICTIONS PAGE`.

The predictions are those that `python -m calibrate.coverage` wrote; the page is a function of them and of the ranges.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibrate.coverage import Prediction, read
from planner.answers import step_range

Key = Callable[[Prediction], str]
GROUPS: dict[str, Key] = {
    "GPU": lambda item: item.gpu,
    "family": lambda item: item.family,
    "source": lambda item: item.source,
    "precision": lambda item: item.precision + (", compiled" if item.compiled else ""),
    "limit": lambda item: f"{item.known}, {item.range_class[1]}",
    "libraries": lambda item: item.libraries,
}
RULES = {"naive": "FLOP over peak", "roofline": "roofline", "6ND": "6ND, MFU 0.4"}


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of a group's steps, as shares of what was measured; `ratio` is the median of measured over predicted."""

    runs: int
    mean: float
    p90: float
    worst: float
    ratio: float
    covered: float


def score(group: Sequence[Prediction], seconds: Callable[[Prediction], float | None] | None = None) -> Score | None:
    """The score of a group by our prediction, or by another rule's seconds; None where the rule says nothing."""
    pairs = [
        (value, item)
        for item in group
        if (value := item.predicted_seconds if seconds is None else seconds(item)) is not None
    ]
    if not pairs:
        return None
    errors = np.abs([value / item.measured_seconds - 1 for value, item in pairs])
    ratios = [item.measured_seconds / value for value, item in pairs]
    return Score(
        len(pairs), float(errors.mean()), float(np.quantile(errors, 0.9)), float(errors.max()),
        float(np.median(ratios)), float(np.mean([inside(item) for _, item in pairs])),
    )  # fmt: skip


def inside(item: Prediction) -> bool:
    """Whether a measured step lies in the range that an answer would give."""
    low, high = step_range(item.known, item.host_bound_share, compiled=item.compiled)  # type: ignore[arg-type]
    return low <= item.measured_seconds / item.predicted_seconds <= high


def half_width(item: Prediction) -> float:
    """Half of the range, as a share of the prediction."""
    low, high = step_range(item.known, item.host_bound_share, compiled=item.compiled)  # type: ignore[arg-type]
    return (high - low) / 2


def kendall(items: Sequence[Prediction]) -> float | None:
    """Kendall's tau of the order of GPUs: runs of one family, precision and source, each GPU's largest."""
    agree = total = 0
    groups: dict[tuple[str, ...], dict[str, Prediction]] = defaultdict(dict)
    for item in items:
        if item.samples:
            key = (item.source, item.family, item.precision, str(item.compiled))
            best = groups[key].get(item.gpu)
            if best is None or item.predicted_seconds > best.predicted_seconds:
                groups[key][item.gpu] = item
    for group in groups.values():
        runs = list(group.values())
        for number, one in enumerate(runs):
            for other in runs[:number]:
                ours = one.predicted_seconds / one.samples - other.predicted_seconds / other.samples
                real = one.measured_seconds / one.samples - other.measured_seconds / other.samples
                agree, total = agree + int(np.sign(ours) * np.sign(real)), total + 1
    return agree / total if total else None


def page(items: Sequence[Prediction]) -> str:
    """The page in Markdown."""
    others = [item for item in items if item.rules]
    mine = [item for item in items if not item.rules]
    lines = [
        "# How exact rigplan is",
        "",
        "Written by `python -m calibrate.accuracy`; do not edit. Errors are of seconds a step, as shares of what was",
        "measured. No prediction was fitted to the run that it is held against: published runs are priced like any",
        "user's question from timings of single operators, the H200's own runs with their models left out of its",
        "profile. One choice was made with these runs in view: timings of 2017, DeepBench's fp16 convolutions on V100",
        "and T4, are left out, for six Volta and Turing cards trained ResNet-50 a quarter slower than those tell.",
        "`real / rule` is the median of measured over predicted: how many times too optimistic a rule is.",
        "",
    ]
    for title, group in (("Published runs of others", others), ("The H200's own runs, model left out", mine)):
        total = score(group)
        if total is None:
            continue
        widths = float(np.median([half_width(item) for item in group]))
        lines += [
            f"## {title}",
            "",
            f"{total.runs} runs: mean error {total.mean:.1%}, 90th percentile {total.p90:.1%}, worst {total.worst:.1%};"
            f" median of measured over predicted {total.ratio:.2f}.",
            f"{total.covered:.0%} lie in the 90 % range that rigplan gives, whose median half-width is {widths:.0%}.",
        ]
        tau = kendall(group)
        lines += [f"Order of the GPUs: Kendall's tau {tau:.2f}.", ""] if tau is not None else [""]
        for name, key in GROUPS.items():
            if any(key(item) for item in group):
                lines += [*_table(name, key, group, bool(group[0].rules)), ""]
    return "\n".join(lines)


def _table(name: str, key: Key, items: Sequence[Prediction], rules: bool) -> Iterator[str]:
    groups: dict[str, list[Prediction]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    heads = [name, "runs", "mean", "p90", "worst", "real / rigplan", "in range"]
    heads += [head for rule in RULES.values() for head in (f"{rule}: mean", "real / rule")] if rules else []
    yield _row(heads)
    yield _row(["---"] + ["---:"] * (len(heads) - 1))
    for label, group in [*sorted(groups.items()), *([("all", list(items))] if len(groups) > 1 else [])]:
        ours = score(group)
        if ours is None:
            continue
        cells = [label or "not stated", str(ours.runs), f"{ours.mean:.1%}", f"{ours.p90:.1%}", f"{ours.worst:.1%}"]
        cells += [f"{ours.ratio:.2f}", f"{ours.covered:.0%}"]
        for rule in RULES if rules else ():
            other = score(group, lambda item, rule=rule: item.rules.get(rule))  # type: ignore[misc]
            cells += ["", ""] if other is None else [f"{other.mean:.0%}", f"{other.ratio:.1f}"]
        yield _row(cells)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2:
        print("usage: python -m calibrate.accuracy PREDICTIONS.jsonl PAGE.md", file=sys.stderr)
        return 2
    Path(arguments[1]).write_text(page(read(Path(arguments[0]))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
