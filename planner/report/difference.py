"""Two answers as a page: the figures side by side, the knobs that differ, and what the change is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from catalog.units import GIB, count, days, seconds, usd
from planner.answer import Estimate
from planner.difference import Difference, Share
from planner.report.layout import few_digits, size, table

SMALL = 0.002  # of the larger step or peak: changes below are taken together


def page(found: Difference, names: tuple[str, str] = ("A", "B"), width: int = 116) -> str:
    """The whole comparison; `names` are what the two were read from."""
    room = max(12, (width - 40) // 2)
    short = tuple(Path(name).name for name in names)
    heads = [_cut(name, room) for name in (short if short[0] != short[1] else names)]
    parts = [table(_figures(found), ["", *heads, "change"], "lrrr")]
    if found.knobs:
        knobs = [[item.name, _cut(item.before, room) or "-", _cut(item.after, room) or "-"] for item in found.knobs]
        parts += ["", "What differs", table(knobs, ["", *heads], "lll")]
    else:
        parts += ["", "Nothing that was asked differs."]
    if found.time:
        parts += ["", "What the change of the step is made of", _made_of(found.time, heads, "step", _signed_seconds)]
    if found.memory:
        parts += [
            "",
            "What the change of the peak is made of, GiB",
            _made_of(found.memory, heads, "peak", _signed_size),
        ]
    return "\n".join(parts)


def _figures(found: Difference) -> list[list[str]]:
    one, two = found.before, found.after
    rows = [["verdict", one.verdict, two.verdict, "" if one.verdict == two.verdict else "changed"]]
    rows.append(_row("GiB of a GPU", one.memory.device_bytes, two.memory.device_bytes, size))
    if one.step is not None and two.step is not None:
        rows.append(_row("step", one.step.seconds, two.step.seconds, seconds))
    if one.throughput is not None and two.throughput is not None:
        speeds = (one.throughput.samples_per_second, two.throughput.samples_per_second)
        rows.append(_row("samples/s", *speeds, few_digits))
        rows.append(["MFU", f"{one.throughput.mfu:.1%}", f"{two.throughput.mfu:.1%}", ""])
    if one.run is not None and two.run is not None:
        rows.append(_row("run", one.run.days, two.run.days, days))
        rows.append(_row("GPU-hours", one.run.gpu_hours, two.run.gpu_hours, few_digits))
        rows.append(_cost(one, two))
    rows.append(_row("parameters", one.parameters, two.parameters, count))
    return rows


def _cost(one: Estimate, two: Estimate) -> list[str]:
    costs = [item.run.cost_usd if item.run is not None else None for item in (one, two)]
    if costs[0] is None or costs[1] is None:
        return ["cost", *("not known" if cost is None else usd(cost) for cost in costs), ""]
    return _row("cost", costs[0], costs[1], usd)


def _row(name: str, before: float, after: float, told: Callable[[float], str]) -> list[str]:
    change = f"{after / before - 1:+.1%}" if before and before != after else ""
    return [name, told(before), told(after), change]


def _made_of(shares: Sequence[Share], heads: list[str], whole: str, told: Callable[[Share], list[str]]) -> str:
    before, after = (sum(getattr(item, side) for item in shares) for side in ("before", "after"))
    least = SMALL * max(before, after)
    shown = [item for item in shares if abs(item.change) >= least]
    rest = [item for item in shares if abs(item.change) < least]
    if rest:
        sums = (sum(item.before for item in rest), sum(item.after for item in rest))
        shown = [*shown, Share(name="all others", before=sums[0], after=sums[1])]
    rows = [
        [item.name.replace("_", " "), *told(item)]
        for item in [*shown, Share(name=f"the {whole}", before=before, after=after)]
    ]
    return table(rows, ["", *heads, "change"], "lrrr")


def _signed_seconds(item: Share) -> list[str]:
    sign = "+" if item.change >= 0 else "-"
    return [seconds(item.before), seconds(item.after), f"{sign}{seconds(abs(item.change))}"]


def _signed_size(item: Share) -> list[str]:
    return [size(item.before), size(item.after), f"{item.change / GIB:+.2f}"]


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"..{text[-(room - 2) :]}"


__all__ = ["page"]
