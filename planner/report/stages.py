"""Stages as a table: a machine a row, naive, free lunch and best side by side."""

from __future__ import annotations

from collections.abc import Sequence

from catalog.units import seconds
from planner.answer import Estimate, Stages, StrategyUsed
from planner.report.layout import few_digits, listed, table
from planner.stages import seconds_a_sample


def section(found: Sequence[Stages]) -> list[str]:
    """The table and what each gap in it means; nothing without stages."""
    if not found:
        return []
    timed = any(item.run for stage in found for item in (stage.naive, stage.free_lunch, stage.best) if item)
    headers = ["GPUs", "naive", "free lunch", "best", "gain", "the best is", "fits"]
    rows = [
        [
            f"{stage.hardware.count} x {stage.hardware.gpu}",
            *(_length(item) for item in (stage.naive, stage.free_lunch, stage.best)),
            _gain(stage),
            _told(stage.best),
            f"{stage.fitting} of {stage.tried}",
        ]
        for stage in found
    ]
    unit = "days of the run" if timed else "seconds a sample"
    reasons = dict.fromkeys(
        f"{name.replace('_', ' ')} of {stage.hardware.count} x {stage.hardware.gpu}: {reason}"
        for stage in found
        for name, reason in stage.reasons.items()
    )
    notes = [
        "naive: eager attention, no TF32, nothing that saves memory; free lunch: fused attention and optimizer, TF32, "
        "compilation; gain: naive over best, else free lunch over best.",
        *reasons,
    ]
    return ["", f"Stages, in {unit}", table(rows, headers, "lrrrrlr"), *listed("Stages are", notes)]


def _length(item: Estimate | None) -> str:
    if item is None:
        return "-"
    return few_digits(item.run.days) if item.run is not None else seconds(seconds_a_sample(item))


def _gain(stage: Stages) -> str:
    before = stage.naive or stage.free_lunch
    if before is None or stage.best is None:
        return "-"
    return f"{seconds_a_sample(before) / seconds_a_sample(stage.best):.2f} x"


def _told(item: Estimate | None) -> str:
    if item is None:
        return "-"
    knobs: StrategyUsed = item.strategy
    words = [
        f"micro-batch {knobs.micro_batch}",
        f"{knobs.loss} loss" if knobs.loss != "eager" else "",
        knobs.sharding if knobs.sharding != "none" else "",
        f"tp {knobs.tensor_parallel}" if knobs.tensor_parallel > 1 else "",
        f"{knobs.checkpointing} checkpointing" if knobs.checkpointing != "none" else "",
        f"offload {knobs.offload}" if knobs.offload != "none" else "",
        "compiled" if knobs.compile else "",
    ]
    return ", ".join(filter(None, words))


__all__ = ["section"]
