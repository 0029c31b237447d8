"""Export: a plan written as a page, Markdown, JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from planner.answer import Estimate, Plan
from planner.report.page import content, html
from planner.report.proposal import HEADERS, Proposal, proposal
from planner.spec import Spec

COLUMNS = (
    "rank", "on_front", "model", "gpu", "fleet", "gpus_per_run", "precision", "attention", "optimizer", "micro_batch",
    "accumulation", "global_batch", "checkpointing", "loss", "sharding", "verdict", "device_bytes", "usable_bytes",
    "step_seconds", "step_known", "days", "low_days", "high_days", "gpu_hours", "cost_usd", "units", "cost_source",
    "cost_date", "energy_kwh", "co2_kg", "reason",
)  # fmt: skip


def written(ending: str, spec: Spec, found: Plan, programmes: Sequence[str]) -> str:
    """The text of a file of this ending; the endings are those of FORMATS."""
    return FORMATS[ending](spec, found, programmes)


def as_json(spec: Spec, found: Plan, programmes: Sequence[str]) -> str:
    """The plan as `rigplan plan --json` prints it, with the proposals beside it."""
    asked = [asdict(made) | {"headers": HEADERS} for made in _proposals(spec, found, programmes)]
    return json.dumps(found.model_dump(mode="json") | {"proposals": asked}, indent=2) + "\n"


def as_csv(_spec: Spec, found: Plan, _programmes: Sequence[str]) -> str:
    """One line a combination: the ranked in order, then the excluded with their reasons."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for rank, item in enumerate(found.ranked, 1):
        writer.writerow(_line(item) | {"rank": rank, "on_front": item in found.pareto})
    for out in found.excluded:
        knobs = {key: value for key, value in out.strategy.model_dump().items() if key in COLUMNS}
        machine = out.hardware
        where = {"gpu": machine.gpu, "fleet": machine.fleet or machine.count, "gpus_per_run": machine.count}
        writer.writerow({**knobs, **where, "model": out.model, "reason": out.reason})
    return stream.getvalue()


def _line(item: Estimate) -> dict[str, object]:
    run, machine = item.campaign or item.run, item.hardware
    told = {"days", "low_days", "high_days", "gpu_hours", "cost_usd", "units", "cost_source", "cost_date", "energy_kwh"}
    return {
        **{key: value for key, value in item.strategy.model_dump().items() if key in COLUMNS},
        **({} if run is None else run.model_dump(include=told | {"co2_kg"})),
        "model": item.model,
        "gpu": machine.gpu,
        "fleet": machine.fleet or machine.count,
        "gpus_per_run": machine.count,
        "verdict": item.verdict,
        "device_bytes": item.memory.device_bytes,
        "usable_bytes": item.memory.usable_bytes,
        "step_seconds": item.step.seconds if item.step else None,
        "step_known": item.step.known if item.step else None,
    }


def as_markdown(spec: Spec, found: Plan, programmes: Sequence[str]) -> str:
    """What the page says, without its charts."""
    page = content(spec, found, programmes)
    parts = [f"# {page['title']}", f"**{page['headline']}**", *page["verdict_lines"], *page["old"]]
    if page["memory"]:
        parts += [f"## Memory of one GPU at the peak, in {page['memory']['phase']}", page["memory"]["known"]]
        parts.append(_table(["", "GiB", "of usable"], page["memory"]["rows"]))
    if page["campaign"]:
        parts += ["## The campaign", _table(page["campaign"]["headers"], page["campaign"]["rows"])]
        parts.append(_bullets(page["campaign"]["reasons"]))
    if page["ranked"]:
        parts += ["## Ranked", _table(page["ranked"]["headers"], page["ranked"]["rows"]), page["ranked"]["legend"]]
        parts += ["### Prices", _bullets(page["ranked"]["prices"])] if page["ranked"]["prices"] else []
    if page["costs"]:
        parts += ["## What it costs", _table(["", "USD", "source", "date"], page["costs"]["rows"])]
        parts.append(_bullets(page["costs"]["lines"]))
    if page["months"]:
        parts += [f"### Month by month, {page['months']['whose']}"]
        parts.append(_table(page["months"]["headers"], page["months"]["rows"]))
    for asked in page["proposals"]:
        parts += [f"## {asked.title}, in {asked.unit}", _table(HEADERS, asked.rows), f"> {asked.text}", asked.note]
        parts.append(f"Form after: {asked.source}")
    if page["excluded"]:
        parts += ["## Excluded", _table(["combinations", "machine", "reason"], page["excluded"])]
    parts += ["## How the numbers are known", _table(["number", "how", "source"], page["known"])]
    for title, lines in page["lists"]:
        parts += [f"### {title}", _bullets(lines)] if lines else []
    return "\n\n".join(part for part in parts if part) + "\n"


def _proposals(spec: Spec, found: Plan, programmes: Sequence[str]) -> list[Proposal]:
    return [made for programme in programmes if (made := proposal(spec, found, programme)) is not None]


def _table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return (
        "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines) if rows else ""
    )


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


FORMATS: Mapping[str, Callable[[Spec, Plan, Sequence[str]], str]] = {
    ".html": html,
    ".md": as_markdown,
    ".json": as_json,
    ".csv": as_csv,
}

__all__ = ["COLUMNS", "FORMATS", "written"]
