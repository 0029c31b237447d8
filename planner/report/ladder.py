"""The ladder of fixes: what makes it fit, and what saves memory but is not enough, each in order of what it costs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest

from planner.answer import Estimate
from planner.report.layout import size, table
from planner.rung import Rung
from planner.search import missing_bytes

NO_BREAK = "\u00a0"
CHANGE_WIDTH, COSTS_WIDTH = 56, 32  # columns; what is longer goes on in the next line


def steps(found: Estimate, rungs: Sequence[Rung]) -> str:
    """The rungs beside what is usable, those that are enough apart from those that are not."""
    if found.verdict == "fits":
        return _titled("What would save memory, from the free to the dear", rungs) or "\nNothing tried saves memory"
    enough = [rung for rung in rungs if rung.fits]
    rest = [rung for rung in rungs if not rung.fits]
    return "".join(
        [
            _titled("What makes it fit, from the free to the dear", enough) or "\nNothing tried makes it fit",
            "\n" if rest else "",
            _titled("What saves memory, but is not enough", rest, short=True),
        ]
    )


def _titled(title: str, rungs: Sequence[Rung], *, short: bool = False) -> str:
    """A table of rungs under its title; with `short`, what each still lacks. Nothing without rungs."""
    rows = []
    for rung in rungs:
        memory = rung.estimate.memory
        figures = [
            f"{size(memory.device_bytes)}/{size(memory.usable_bytes)}",
            size(rung.saved_bytes) if rung.saved_bytes > 0 else "-",
            *([_lacks(rung.estimate)] if short else []),
        ]
        parts = (_wrapped(rung.change, CHANGE_WIDTH), _wrapped(rung.price, COSTS_WIDTH))
        for line, (change, costs) in enumerate(zip_longest(*parts, fillvalue="")):
            rows.append([change, costs, *(figures if line == 0 else [""] * len(figures))])
    headers = ["set", "costs", "GiB", "saves", *(["still missing"] if short else [])]
    return f"\n{title}\n{table(rows, headers, 'llrr' + 'r' * short)}" if rows else ""


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of whole pairs of knob and value."""
    lines = textwrap.wrap(text.replace(": ", f":{NO_BREAK}"), width, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


def _lacks(estimate: Estimate) -> str:
    return size(missing_bytes(estimate)) if estimate.verdict == "does-not-fit" else "borderline"


__all__ = ["steps"]
