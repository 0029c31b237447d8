"""Layout: how a report writes sizes, times and money, and how it sets tables and wrapped lines."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence

from catalog.units import GIB, day_unit

WIDTH = 116


def columns(most: int = WIDTH) -> int:
    """The width of the terminal, at most what pages are set in; that where there is no terminal."""
    return min(most, shutil.get_terminal_size((most, 24)).columns)


def size(size_bytes: float) -> str:
    """GiB without its unit, as a table's column has it: ``16.8``."""
    value = size_bytes / GIB
    return f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"


def several(number: int, thing: str) -> str:
    """``1 combination``, ``12 combinations``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def few_digits(value: float) -> str:
    """A table's number in three significant digits, with thousands separated: ``38.2``, ``0.57``, ``1,240``."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def span(low: float, high: float, between: str = " to ") -> str:
    """``17.6 to 18.4``."""
    return f"{few_digits(low)}{between}{few_digits(high)}"


def length(days: float) -> str:
    """How long a run takes as a table's cell under `days` has it: ``38.2``, with its unit where that is not days:
    ``4.50 h``."""
    a_day, name = day_unit(days)
    return few_digits(days * a_day) + ("" if name == "days" else f" {name}")


def length_span(days: float, low_days: float, high_days: float, between: str = " to ") -> str:
    """The range of such a length, in the unit of its middle and without it: ``28.6 to 51.6``."""
    a_day, _ = day_unit(days)
    return span(low_days * a_day, high_days * a_day, between)


def table(rows: Sequence[Sequence[str]], headers: Sequence[str], align: str, *, narrow: bool = False) -> str:
    """A plain table, two spaces in; `align` has one letter a column, l or r. `narrow`: one space between columns."""
    from tabulate import DataRow, Line, TableFormat, tabulate

    sides = ["left" if letter == "l" else "right" for letter in align]
    gap, margin = (" ", "") if narrow else ("  ", "  ")
    row, rule = DataRow("", gap, ""), Line("", "-", gap, "")
    form = TableFormat(None, rule, None, None, row, row, 0, None)
    text = tabulate(rows, headers, tablefmt=form, colalign=sides, disable_numparse=True)
    return "\n".join(f"{margin}{line}".rstrip() for line in text.splitlines())


def listed(title: str, lines: Iterable[str]) -> list[str]:
    """A titled list with wrapped lines; nothing when it is empty."""
    wrapped = [
        textwrap.fill(line, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
        for line in lines
    ]
    return ["", title, *wrapped] if wrapped else []


__all__ = ["WIDTH", "columns", "few_digits", "length", "length_span", "listed", "several", "size", "span", "table"]
