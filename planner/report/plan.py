"""A plan as a page: the ranked table, the front of time against cost, and why the others are out."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from catalog.units import day_unit, days, seconds
from planner.answer import Campaign, Estimate, Excluded, HardwareUsed, Plan, Run, StrategyUsed
from planner.rank import RISK
from planner.report import burn, campaign, stages
from planner.report.layout import WIDTH, length, length_span, listed, several, size, table

SHOWN = 30  # rows of a table before the rest is only counted
REASON_EXAMPLES = 3
CENTS_BELOW_USD = 10
MUCH_FASTER = 2  # times: such a plan is told beside the cheapest, where no one has said how long it may take
ANY_NUMBER = re.compile(r"\d[\d,.]*")


def page(found: Plan, *, every: bool = False) -> str:
    """The whole plan; `every` row instead of the best."""
    parts = [_head(found)]
    if found.ranked:
        rows = found.ranked if every else _best(found)
        parts += ["", _table(found, rows)]
        left = len(found.ranked) - len(rows)
        more = [f"... and {several(left, 'more plan')} below these; --all shows them"] if left else []
        parts += [*more, _legend(found), *campaign.section(found.ranked)]
        spent = found.ranked[0].campaign or found.ranked[0].run
        parts += burn.section(spent, f"the first: {campaign.fleet_name(found.ranked[0])}") if spent is not None else []
    parts += stages.section(found.stages)
    parts += _excluded(found.excluded)
    parts += listed("Notes", found.notes)
    parts += listed("Assumed", found.assumptions)
    parts += listed("Not modelled", found.unmodelled)
    return "\n".join(parts)


def name(item: Estimate | Excluded) -> str:
    """A combination in a few words: ``4 x a100-sxm4-80gb, bf16-mixed, sdpa, micro-batch 8 x 32, no checkpointing``."""
    knobs, machine = item.strategy, item.hardware
    batch = f", micro-batch {knobs.micro_batch} x {knobs.accumulation}" if knobs.micro_batch else ""
    kept = "no checkpointing" if knobs.checkpointing == "none" else f"{knobs.checkpointing} checkpointing"
    extras = [word for word in _other_knobs(knobs).split(", ") if word]
    model = [item.model] if item.model else []
    return ", ".join(
        [*model, f"{machine.count} x {machine.gpu}", knobs.precision, f"{knobs.attention}{batch}", kept, *extras]
    )


def _head(found: Plan) -> str:
    total = len(found.ranked) + len(found.excluded)
    if not found.ranked:
        return f"none of {several(total, 'combination')} works"
    best = found.ranked[0]
    lines = [
        f"{len(found.ranked)} of {several(total, 'combination')} work{'s' if len(found.ranked) == 1 else ''}",
        f"{found.question or 'best'}: {_told(best)}",
    ]
    if best.verdict != "fits":
        sure = next((item for item in found.ranked if item.verdict == "fits"), None)
        lines.append(
            f"its memory is {best.verdict}; "
            + (f"best that surely fits: {_told(sure)}" if sure else "none surely fits")
        )
    quick = min(found.pareto, key=_days, default=best)
    unlimited = found.question.startswith("the cheapest") and "finishes" not in found.question
    if unlimited and MUCH_FASTER * _days(quick) < _days(best):
        lines += [
            f"the fastest: {_told(quick)}",
            f"--within {_about_half(best)} asks for the cheapest that is done by then",
        ]
    return "\n".join(lines)


def _days(item: Estimate) -> float:
    run = item.campaign or item.run
    return run.days if run is not None else 0.0


def _about_half(item: Estimate) -> str:
    """Half of the time that a plan takes, in one digit, as an option takes it: ``200d``, ``8h``."""
    half_days = _days(item) / 2
    a_day, unit = day_unit(half_days)
    return f"{float(f'{half_days * a_day:.1g}'):g}{unit.replace('days', 'd')}"


def _told(item: Estimate) -> str:
    """A plan and what its campaign or run takes."""
    run = item.campaign or item.run
    if run is None:
        return name(item)
    machine = f"{campaign.fleet_name(item)}, {item.hardware.count} a run, of " if item.campaign is not None else ""
    between = length_span(run.days, run.low_days, run.high_days)
    return f"{machine}{name(item)}: {days(run.days)} ({between}){_cost(run, ', ', ' USD')}"


def _cost(run: Run | Campaign, before: str = "", after: str = "") -> str:
    """USD; the programme's units where only they are known; `?` in a table's cell."""
    if run.cost_usd is not None:
        cents = 2 if run.cost_usd < CENTS_BELOW_USD else 0
        return f"{before}{run.cost_usd:,.{cents}f}{after}"
    if run.units is not None:
        return f"{before}{run.units:,.0f} {run.unit}"
    return "" if before else "?"


def _best(found: Plan) -> Sequence[Estimate]:
    """The first rows, and behind them what else is on the front."""
    first = found.ranked[:SHOWN]
    front = [item for item in found.ranked[SHOWN:] if item in found.pareto]
    return [*first, *front]


def _table(found: Plan, rows: Sequence[Estimate]) -> str:
    front = found.pareto if len(found.ranked) > 1 else []
    timed, run = any(item.step for item in rows), any(item.run for item in rows)
    others = any(_other_knobs(item.strategy) for item in rows)
    models = any(item.model for item in rows)
    headers = [
        "#",
        *(["model"] if models else []),
        "GPUs",
        "precision",
        "attn",
        "batch",
        "ckpt",
        *(["other"] if others else []),
        "GiB",
        "verdict",
    ]
    align = "r" + "l" * models + "lllrl" + "l" * others + "rl"
    headers += ["step", "known"] if timed else []
    align += "rl" if timed else ""
    headers += ["days", "range", "USD"] if run else []
    align += "rlr" if run else ""
    body = []
    for item in rows:
        place = next(at for at, other in enumerate(found.ranked, 1) if other is item)
        knobs, memory = item.strategy, item.memory
        row = [
            f"{place}{'*' if item in front else ' '}",
            *([item.model or ""] if models else []),
            f"{item.hardware.count} x {item.hardware.gpu}",
            knobs.precision,
            knobs.attention.replace("flash_attention_2", "flash2"),
            f"{knobs.micro_batch} x {knobs.accumulation}",
            knobs.checkpointing.replace("none", "-"),
        ]
        row += [_other_knobs(knobs)] if others else []
        row += [f"{size(memory.device_bytes)}/{size(memory.usable_bytes)}", item.verdict]
        if timed:
            row += [seconds(item.step.seconds), item.step.known] if item.step else ["", ""]
        whole = item.campaign or item.run
        if run and whole is not None:
            between = length_span(whole.days, whole.low_days, whole.high_days, "-")
            row += [length(whole.days), between, _cost(whole)]
        body.append(row)
    return table(body, headers, align, narrow=True)


def _other_knobs(knobs: StrategyUsed) -> str:
    """The knobs that have no column of their own, where they are not at their usual value."""
    words = [
        knobs.optimizer if knobs.optimizer != "adamw" else "",
        knobs.optimizer_implementation if knobs.optimizer_implementation != "foreach" else "",
        f"{knobs.loss} loss" if knobs.loss != "eager" else "",
        knobs.sharding if knobs.sharding != "none" else "",
        f"tp {knobs.tensor_parallel}" if knobs.tensor_parallel > 1 else "",
        f"offload {knobs.offload}" if knobs.offload != "none" else "",
        "expandable" if knobs.allocator == "expandable" else "",
        "compiled" if knobs.compile else "",
    ]
    return ", ".join(filter(None, words))


def _legend(found: Plan) -> str:
    words = ["batch: micro-batch x accumulation.", "GiB: used/usable of one GPU."]
    if len(found.ranked) > 1 and found.pareto:
        words.insert(0, "* on the front of time and cost.")
    if any(item.step for item in found.ranked):
        words.append("known: the step.")
    if any(item.verdict == "borderline" for item in found.ranked):
        words.append(f"borderline: may not fit, and ranks as if it took {RISK:.0%} more.")
    if any(item.campaign for item in found.ranked):
        words.append("days, USD: of the whole campaign.")
    return "\n".join([*textwrap.wrap(" ".join(words), WIDTH), *listed("Prices", prices(found))])


def prices(found: Plan) -> list[str]:
    """Whose price each GPU's is, and of when."""
    priced = [item for item in found.ranked if item.run is not None and item.run.cost_usd is not None]
    return list(
        dict.fromkeys(
            f"{item.hardware.gpu} {item.run.cost_source} {item.run.cost_date or ''}".strip()
            for item in priced
            if item.run is not None
        )
    )


def _excluded(excluded: Sequence[Excluded]) -> list[str]:
    """One line a kind of reason."""
    lines = [
        f"{several(number, 'combination')} on {machines}; {reason}" for number, machines, reason in grouped(excluded)
    ]
    return listed(f"Excluded: {several(len(excluded), 'combination')}", lines) if lines else []


def grouped(excluded: Sequence[Excluded]) -> list[tuple[int, str, str]]:
    """How many, on which machines, why: those that differ in numbers alone are told once, the first as example."""
    groups: dict[str, list[Excluded]] = {}
    for item in excluded:
        groups.setdefault(ANY_NUMBER.sub("#", item.reason.split("(")[0]), []).append(item)
    found = []
    for group in groups.values():
        several_reasons = len({item.reason for item in group}) > 1
        reason = f"for example, {group[0].reason}" if several_reasons else group[0].reason
        found.append((len(group), _machines([item.hardware for item in group]), reason))
    return found


def _machines(hardware: Sequence[HardwareUsed]) -> str:
    counts: dict[str, list[int]] = {}
    for item in hardware:
        counts.setdefault(item.gpu, []).append(item.count)
    words = [f"{'/'.join(str(n) for n in sorted(set(numbers)))} x {gpu}" for gpu, numbers in counts.items()]
    more = len(words) - REASON_EXAMPLES
    return ", ".join(words[:REASON_EXAMPLES]) + (f" and {more} more" if more > 0 else "")


__all__ = ["WIDTH", "grouped", "name", "page", "prices"]
