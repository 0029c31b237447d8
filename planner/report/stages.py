"""Stages as a table: a machine a row, naive, free lunch and best side by side."""

from __future__ import annotations

from collections.abc import Sequence

from catalog.units import seconds
from planner.answer import Estimate, Stages, StrategyUsed
from planner.report.layout import length, listed, table
from planner.stages import seconds_a_sample


def section(found: Sequence[Stages]) -> list[str]:
    """The table and what each gap in it means; nothing without stages."""
    if not found:
        return []
    timed = any(item.run for stage in found for item in _three(stage) if item)
    models = any(stage.model for stage in found)
    headers = ["GPUs", "naive", "free lunch", "best", "gain", "the best is", "fits", "known"]
    rows = [
        [
            *([stage.model or ""] if models else []),
            f"{stage.hardware.count} x {stage.hardware.gpu}",
            *(_length(item) for item in _three(stage)),
            _gain(stage),
            _told(stage.best),
            f"{stage.fitting} of {stage.tried}",
            _known(stage),
        ]
        for stage in found
    ]
    unit = "days of the run" if timed else "seconds a sample"
    reasons = dict.fromkeys(
        f"{name.replace('_', ' ')} of {_where(stage)}: {reason}"
        for stage in found
        for name, reason in stage.reasons.items()
    )
    notes = [
        "naive: eager attention, no TF32, nothing that saves memory; free lunch: fused attention and optimizer, TF32, "
        "compilation; gain: naive over best, else free lunch over best.",
        *reasons,
    ]
    shown = table(rows, ["model"] * models + headers, "l" * models + "lrrrrlrl")
    return ["", f"Stages, in {unit}", shown, *listed("Stages are", notes)]


def _three(stage: Stages) -> tuple[Estimate | None, Estimate | None, Estimate | None]:
    return stage.naive, stage.free_lunch, stage.best


def _where(stage: Stages) -> str:
    machine = f"{stage.hardware.count} x {stage.hardware.gpu}"
    return f"{stage.model} on {machine}" if stage.model else machine


def _known(stage: Stages) -> str:
    """How the three times are known: one word where it is the same one."""
    words = [item.step.known if item and item.step else "-" for item in _three(stage)]
    told = dict.fromkeys(word for word in words if word != "-")
    return next(iter(told), "-") if len(told) < 2 else ", ".join(words)


def _length(item: Estimate | None) -> str:
    if item is None:
        return "-"
    return length(item.run.days) if item.run is not None else seconds(seconds_a_sample(item))


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
