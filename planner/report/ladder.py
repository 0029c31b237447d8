"""The ladder of fixes as a table: what to change, what that costs, the memory it takes and saves, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from planner.answer import Estimate
from planner.ladder import Rung
from planner.report.layout import size, table


def steps(found: Estimate, rungs: Sequence[Rung]) -> str:
    """The rungs in order of cost, beside what is usable."""
    rows = [
        [
            rung.change,
            rung.price,
            f"{size(rung.estimate.memory.device_bytes)}/{size(rung.estimate.memory.usable_bytes)}",
            size(rung.saved_bytes) if rung.saved_bytes > 0 else "-",
            rung.estimate.verdict,
        ]
        for rung in rungs
    ]
    title = "What would help, each alone, from the free to the dear"
    return f"\n{title}\n{table(rows, ['set', 'costs', 'GiB', 'saves', 'verdict'], 'llrrl')}"


__all__ = ["steps"]
