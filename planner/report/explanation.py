"""An explanation as a page: the step by kind of work and by module, its largest operators, the peak, and advice."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from catalog.units import count, seconds
from planner.answer import Known, weakest
from planner.explanation import Advice, Explanation, MemoryRow, TimeRow
from planner.report.estimate import setting, verdict, warned
from planner.report.layout import WIDTH, few_digits, listed, size, table

SMALL = 0.001  # of the step or the peak: what is below is taken together or left out
SHOWN_MODULES, SHOWN_OPERATORS = 16, 12
NARROW = 100  # columns; below, tables leave out what can be left out
NUMBERS_WIDTH = 50  # columns of a table of modules beside their names
LARGEST, HOLDER = 2, 30  # modules named for each kind of memory, and columns for each name
WHOLE_MODEL, OPTIMIZER, COMPILED = "(the model itself)", "(optimizer)", "(compiled graphs)"
WORDS = (
    "  of peak: share of the datasheet's FLOP or bytes a second, whichever bounds it; launch: shorter than the host "
    "takes to issue it; known: measured on this GPU, transferred from others, or prior: published"
)
PHASES = {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}
# The sizes of a shape worth a column, by kind; what is not here shows all but the flags.
SIZES = {
    "matmul": ("m", "n", "k"),
    "attention": ("batch", "heads", "queries", "keys", "head_dim"),
    "convolution": ("images", "channels_in", "channels_out", "out_positions", "kernel_volume"),
    "gather": ("rows", "length"),
    "scatter": ("rows", "length"),
    "reduction": ("kept", "reduced"),
    "softmax": ("rows", "length"),
    "optimizer": ("elements",),
    "layer_norm": ("rows", "length"),
    "fused": ("kept", "reduced"),
    "batch_norm": ("images", "channels", "positions"),
    "pointwise": ("elements",),
    "copy": ("elements",),
}


def page(found: Explanation, source: str = "SPEC", *, width: int = WIDTH, every: bool = False) -> str:
    """The explanation without its advice, for a terminal of `width` columns; `every` row instead of the largest.
    `source` is what the spec was read from."""
    estimate = found.estimate
    head = [*setting(estimate).splitlines(), *warned(estimate, source)]
    parts = [verdict(estimate), *(line for told in head for line in _wrapped(told, width))]
    step = estimate.step
    if step is not None:
        between = f"{seconds(step.low_seconds)} to {seconds(step.high_seconds)}"
        parts += ["", f"A step takes {seconds(step.seconds)} ({between}), {step.known}"]
    parts += ["", "Where the time goes", _kinds(found.time, width, every), *_wrapped(WORDS, width)]
    parts += ["", "By module: milliseconds of a step, and GiB at the peak", _modules(found, width, every)]
    parts += ["", "The largest operators" if not every else "Every operator", _operators(found, width, every)]
    peak = f"{size(estimate.memory.peak_allocated_bytes)} GiB allocated, in {estimate.memory.peak_phase}"
    parts += ["", f"Where the memory goes at the peak: {peak}", _memory(found.memory, width)]
    parts += listed("Notes", estimate.notes)
    parts += listed("Assumed", estimate.assumptions)
    parts += listed("Not modelled", estimate.unmodelled)
    return "\n".join(parts)


def _kinds(rows: Sequence[TimeRow], width: int, every: bool) -> str:
    whole = sum(row.seconds for row in rows)
    groups = _grouped(rows, lambda row: row.kind.replace("_", " "))
    small = [] if every else [name for name, group in groups if sum(row.seconds for row in group) < SMALL * whole]
    groups = [item for item in groups if item[0] not in small]
    rest = [row for row in rows if row.kind.replace("_", " ") in small]
    groups += [(f"{len(small)} others", rest)] if rest else []
    body = []
    for name, group in groups:
        took = sum(row.seconds for row in group)
        at_best = sum((row.efficiency or 0.0) * row.seconds for row in group)
        bound = _grouped(group, lambda row: row.bound)[0][0]
        words: list[Known] = [row.known for row in group if row.known is not None]
        line = [name, seconds(took), f"{took / whole:.1%}", _number(sum(row.count for row in group)), bound]
        line += [f"{at_best / took:.0%}" if words else "", weakest(*words) if words else ""]
        body.append(line)
    body.append(["a step", seconds(whole), "100.0%", "", "", "", ""])
    headers = ["", "time", "share", "calls", "bound by", "of peak", "known"]
    if width < NARROW:
        return table([line[:-1] for line in body], headers[:-1], "lrrrlr")
    return table(body, headers, "lrrrlrl")


@dataclass(slots=True)
class _Module:
    modules: int = 1
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    held_bytes: int = 0

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s + self.optimizer_s


def _modules(found: Explanation, width: int, every: bool) -> str:
    modules: dict[str, _Module] = {}
    waiting = 0.0
    for row in found.time:
        if not row.phase:
            waiting += row.seconds
            continue
        name = row.module or (OPTIMIZER if row.phase == "optimizer" else _whole(found))
        module = modules.setdefault(name, _Module())
        module.modules = max(module.modules, row.modules)
        if row.phase == "forward":
            module.forward_s += row.seconds
        elif row.phase == "backward":
            module.backward_s += row.seconds
        else:
            module.optimizer_s += row.seconds
    for held in found.memory:
        module = modules.setdefault(held.module or _whole(found), _Module())
        module.modules = max(module.modules, held.modules)
        module.held_bytes += held.size_bytes
    whole = sum(module.seconds for module in modules.values()) + waiting
    peak = sum(module.held_bytes for module in modules.values())
    ordered = sorted(modules.items(), key=lambda item: -max(item[1].seconds / whole, item[1].held_bytes / peak))
    shown, rest = (ordered, []) if every else (ordered[:SHOWN_MODULES], ordered[SHOWN_MODULES:])
    shown.sort(key=lambda item: -item[1].seconds)
    room = width - NUMBERS_WIDTH
    body = [_module_row(_short(name, room), module, whole, peak) for name, module in shown]
    if rest:
        other = _Module(
            1,
            sum(module.forward_s for _, module in rest),
            sum(module.backward_s for _, module in rest),
            sum(module.optimizer_s for _, module in rest),
            sum(module.held_bytes for _, module in rest),
        )
        body.append(_module_row(f"... {len(rest)} others", other, whole, peak))
    body.append(["waiting, in no module", "", "", "", "", f"{waiting / whole:.1%}", ""])
    body.append(["a step, the peak", "", "", "", "", "100.0%", size(peak)])
    return table(body, ["", "x", "fwd", "bwd", "opt", "share", "GiB"], "lrrrrrr")


def _module_row(name: str, module: _Module, whole: float, peak: int) -> list[str]:
    times = (module.forward_s, module.backward_s, module.optimizer_s)
    return [
        name,
        str(module.modules) if module.modules > 1 else "",
        *(few_digits(value * 1e3) if value else "" for value in times),
        f"{module.seconds / whole:.1%}" if module.seconds else "",
        size(module.held_bytes) if module.held_bytes >= SMALL * peak else "",
    ]


def _whole(found: Explanation) -> str:
    """What has no module of its own: what the model does beside its parts, or kernels that several were fused into."""
    return COMPILED if found.estimate.strategy.compile else WHOLE_MODEL


def _operators(found: Explanation, width: int, every: bool) -> str:
    rows = found.time
    whole = sum(row.seconds for row in rows)
    working = [row for row in rows if row.phase]
    shown = working if every else working[:SHOWN_OPERATORS]
    wide = width >= NARROW
    headers = ["time", "%", "", "module", "operator", "shape", "bound", "peak", *(["known"] if wide else [])]
    body = []
    for row in shown:
        name = row.operator if row.kind != "attention" else f"attention {row.operator}"
        shape = f"{_sizes(row)} {row.dtype}" if wide else _sizes(row)
        line = [seconds(row.seconds), f"{100 * row.seconds / whole:.1f}", PHASES.get(row.phase, row.phase)]
        line += [_short(row.module or _whole(found), 30 if wide else 18), _cut(name, 20 if wide else 13), shape]
        line += [row.bound, f"{row.efficiency:.0%}" if row.efficiency is not None else ""]
        body.append([*line, how(row)] if wide else line)
    text = table(body, headers, "rrlllllr" + "l" * wide, narrow=True)
    left = sum(row.seconds for row in working[len(shown) :])
    return f"{text}\n... and {len(working) - len(shown)} more, {left / whole:.0%}; --all shows them" if left else text


def how(row: TimeRow) -> str:
    """How a price is known: `timed` is this very call; else the word of the curve that it was read off."""
    return "timed" if row.timed_exactly else str(row.known or "")


def _number(value: int) -> str:
    return f"{value:,}" if value else ""


def _sizes(row: TimeRow) -> str:
    names = SIZES.get(row.kind, tuple(row.shape))
    values = [row.shape[name] for name in names if name in row.shape]
    if row.kind == "matmul" and row.shape.get("batch", 1) > 1:
        values = [row.shape["batch"], *values]
    return count(values[0]) if len(values) == 1 else "x".join(str(value) for value in values)


def _memory(rows: Sequence[MemoryRow], width: int) -> str:
    peak = sum(row.size_bytes for row in rows)
    body = []
    for category, group in _grouped_memory(rows):
        held = sum(row.size_bytes for row in group)
        if held < SMALL * peak:
            continue
        largest = [row for row in group if row.module][: LARGEST if width >= NARROW else 1]
        holders = ", ".join(f"{_short(row.module, HOLDER)} {size(row.size_bytes)}" for row in largest)
        body.append([category, size(held), f"{held / peak:.0%}", holders])
    body.append(["allocated at the peak", size(peak), "100%", ""])
    return table(body, ["", "GiB", "share", "held by"], "lrrl")


def advice(found: Explanation, *, width: int = WIDTH) -> str:
    """What would help most, one by one and together."""
    if not found.advice:
        return "\nWhat would help: nothing that was tried makes it better."
    title = "What would help most"
    if found.estimate.verdict == "does-not-fit":
        fitting = any(item.estimate.verdict == "fits" for item in found.best_advice)
        title = "What makes it fit" if fitting else "Nothing tried makes it fit; what saves most"
    lines = ["", f"{title}: each alone, worked out like the answer above"]
    for place, item in enumerate(found.best_advice, 1):
        lines += [*_wrapped(f"  {place}. {item.change}: {item.why}", width), *_gain(found, item, width)]
    if found.together is not None:
        lines += [*_wrapped(f"  all: {found.together.change}", width), *_gain(found, found.together, width)]
    left = len(found.advice) - len(found.best_advice)
    rest = "more; `rigplan fits` shows all" if found.estimate.verdict == "does-not-fit" else "more with --json"
    return "\n".join([*lines, f"  ... and {left} {rest}"] if left else lines)


def _gain(found: Explanation, item: Advice, width: int) -> list[str]:
    words = [f"costs {item.costs}", f"{size(item.estimate.memory.device_bytes)} GiB"]
    if item.saved_seconds > 0 and item.estimate.step is not None and found.estimate.step is not None:
        share = item.saved_seconds / found.estimate.step.seconds
        words.insert(0, f"{seconds(item.estimate.step.seconds)} a step, {share:.0%} less")
    elif item.saved_bytes > 0:
        words.insert(0, f"saves {size(item.saved_bytes)} GiB, then {item.estimate.verdict}")
    return _wrapped(f"     {'; '.join(words)}", width)


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, subsequent_indent="     ", break_on_hyphens=False, drop_whitespace=True)


def _grouped(rows: Iterable[TimeRow], key: Callable[[TimeRow], str]) -> list[tuple[str, list[TimeRow]]]:
    """Rows by a key, the longest group first."""
    groups: dict[str, list[TimeRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return sorted(groups.items(), key=lambda item: -sum(row.seconds for row in item[1]))


def _grouped_memory(rows: Iterable[MemoryRow]) -> list[tuple[str, list[MemoryRow]]]:
    groups: dict[str, list[MemoryRow]] = {}
    for row in rows:
        groups.setdefault(row.category, []).append(row)
    return sorted(groups.items(), key=lambda item: -sum(row.size_bytes for row in item[1]))


def _short(name: str, room: int) -> str:
    """A module's name from its end, for that is what tells it from others: ``..layers.*.mlp.c_fc``."""
    parts = name.split(".")
    while len(parts) > 1 and len(".".join(parts)) + (len(parts) < name.count(".") + 1) * 2 > room:
        parts = parts[1:]
    short = ".".join(parts)
    return _cut(short if short == name else f"..{short}", room)


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 2]}.."


__all__ = ["advice", "how", "page"]
