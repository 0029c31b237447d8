"""A plan as a self-contained page: opens from disk, asks no network, in light and dark, on a phone and a desk."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from catalog.units import count, days, gib, seconds, usd
from planner import __version__
from planner.answer import Estimate, Excluded, Plan, Run
from planner.report import burn, campaign, charts
from planner.report.charts import Point
from planner.report.estimate import KNOWN, setting, verdict
from planner.report.facts import facts
from planner.report.layout import few_digits, length, length_span, several, size
from planner.report.plan import grouped, name, prices
from planner.report.proposal import HEADERS, proposal, throughput
from planner.spec import Spec

TEMPLATES = Path(__file__).with_name("templates")
LEAST_BYTES = 5 << 20  # what still shows as 0.01 GiB
SHOWN = 30  # rows of the ranked table; the CSV has them all


def html(spec: Spec, found: Plan, programmes: Sequence[str]) -> str:
    """The page of a plan with the tables of these programmes. Text from the spec is escaped."""
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True)
    return environment.get_template("page.html").render(content(spec, found, programmes))


def content(spec: Spec, found: Plan, programmes: Sequence[str]) -> dict[str, Any]:
    """Everything on the page, as the template names it."""
    from markupsafe import Markup

    best, every = found.ranked[0] if found.ranked else None, len(found.ranked) + len(found.excluded)
    asked = [made for programme in programmes if (made := proposal(spec, found, programme)) is not None]
    return {
        "title": title(spec),
        "version": __version__,
        "made_on": date.today().isoformat(),
        "combinations": f"{len(found.ranked)} of {several(every, 'combination')} work{'s' * (len(found.ranked) == 1)}",
        "verdict_class": "none" if best is None else best.verdict,
        "headline": headline(found),
        "verdict_lines": [] if best is None else [verdict(best), *_verdict(best)],
        "old": [note for note in found.notes if note.startswith("OLD PRICES")],
        "facts": [] if best is None else facts(best),
        "memory": None if best is None else _memory(best),
        "campaign": _campaign(found.ranked),
        "ranked": _ranked(found) if found.ranked else None,
        "scatter": Markup(time_and_cost(found)),
        "scaling": Markup(_scaling(found.ranked)),
        "costs": None if best is None or best.run is None else _costs(best, best.run),
        "months": None if best is None else _months(best),
        "proposals": asked,
        "proposal_headers": HEADERS,
        "excluded": _excluded(found.excluded),
        "known": [] if best is None else _known(best),
        "lists": [
            ("Notes", [note for note in found.notes if not note.startswith("OLD PRICES")]),
            ("Assumed", found.assumptions),
            ("Not modelled", found.unmodelled),
        ],
    }


def title(spec: Spec) -> str:
    """The model and the work, in a line."""
    model = spec.model
    if spec.models:
        return f"{', '.join(spec.models)}: {spec.data.total or 'one step'}"
    shown = model.name or model.module or (model.config if isinstance(model.config, str) else "a model of one's own")
    runs = f", {spec.campaign.runs} runs" if spec.campaign is not None else ""
    return f"{shown}: {spec.data.total or 'one step'}{runs}"


def headline(found: Plan) -> str:
    """What is best, in a sentence."""
    if not found.ranked:
        return "None of the combinations works."
    best = found.ranked[0]
    run = best.campaign or best.run
    machine = campaign.fleet_name(best)
    first = _capital(f"{found.question or 'best'}: ") + (f"{best.model} on " if best.model else "") + machine
    if run is None:
        return f"{first}, {best.verdict}"
    cost = (
        usd(run.cost_usd) if run.cost_usd is not None else f"{run.units:,.0f} {run.unit}" if run.units else "no price"
    )
    return f"{first}, {days(run.days)} ({length_span(run.days, run.low_days, run.high_days)}), {cost}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _verdict(best: Estimate) -> list[str]:
    return [line for line in (*setting(best).splitlines(), throughput(best)) if line]


def _memory(best: Estimate) -> dict[str, Any]:
    memory = best.memory
    parts = sorted(memory.by_category.items(), key=lambda part: -part[1])
    beside = [
        ("kept by the allocator", memory.peak_reserved_bytes - memory.peak_allocated_bytes),
        ("CUDA context", max(0, memory.device_bytes - memory.peak_reserved_bytes)),
    ]
    shown = [(what, held) for what, held in [*parts, *beside] if held >= LEAST_BYTES]
    usable = memory.usable_bytes
    rows = [[what, size(held), f"{held / usable:.1%}"] for what, held in shown]
    rows.append(["what nvidia-smi shows", size(memory.device_bytes), f"{memory.device_bytes / usable:.1%}"])
    return {
        "phase": memory.peak_phase,
        "setting": name(best),
        "known": f"{KNOWN[memory.known]}; between {gib(memory.low_bytes)} and {gib(memory.high_bytes)}",
        "parts": [{"name": what, "gib": size(held), "percent": f"{100 * held / usable:.2f}"} for what, held in shown],
        "rows": rows,
    }


def _campaign(found: Sequence[Estimate]) -> dict[str, Any] | None:
    rows = [
        [
            campaign.fleet_name(item), plan.gpus_per_run, plan.parallel, plan.waves,
            length(item.run.days) if item.run else "", length(plan.days), f"{plan.busy_share:.0%}",
            campaign.cost(plan),
        ]
        for item, plan in campaign.fleets(found)
    ]  # fmt: skip
    headers = ["fleet", "GPUs/run", "at once", "waves", "days/run", "days", "busy", "cost"]
    allowed = [line for _, plan in campaign.fleets(found)[:1] for line in campaign.allowances(plan)]
    return {"headers": headers, "rows": rows, "reasons": [*campaign.reasons(found), *allowed]} if rows else None


def _ranked(found: Plan) -> dict[str, Any]:
    rows, front = [], []
    for place, item in enumerate(found.ranked[:SHOWN], 1):
        run, on_front = item.campaign or item.run, item in found.pareto
        if on_front:
            front.append(place - 1)
        knobs, memory = item.strategy, item.memory
        cost = "" if run is None else few_digits(run.cost_usd) if run.cost_usd is not None else "?"
        if run is not None and run.cost_usd is None and run.units is not None:
            cost = f"{run.units:,.0f} {run.unit}"
        rows.append(
            [
                f"{place}{'*' if on_front else ''}",
                (f"{item.model}, " if item.model else "")
                + campaign.fleet_name(item)
                + (f", {item.hardware.count} a run" if item.campaign else ""),
                "" if run is None else length(run.days),
                "" if run is None else length_span(run.days, run.low_days, run.high_days, "-"),
                cost,
                item.verdict,
                knobs.precision,
                knobs.attention,
                f"{size(memory.device_bytes)}/{size(memory.usable_bytes)}",
                f"{knobs.micro_batch} x {knobs.accumulation}, {knobs.checkpointing} ckpt",
                "" if item.step is None else seconds(item.step.seconds),
                "" if item.step is None else item.step.known,
            ]
        )
    models = any(item.model for item in found.ranked)
    headers = [
        "#",
        "model and GPUs" if models else "GPUs",
        "days",
        "range",
        "USD",
        "verdict",
        "precision",
        "attention",
        "GiB",
        "batch",
        "step",
        "known",
    ]
    left = len(found.ranked) - len(rows)
    legend = "GiB: used of usable, one GPU. known: the step time."
    legend += " Days and USD are of the whole campaign." if any(item.campaign for item in found.ranked) else ""
    return {
        "headers": headers,
        "rows": rows,
        "front": front,
        "prices": prices(found),
        "legend": legend + (f" {left} more not shown." if left else ""),
    }


def time_and_cost(found: Plan) -> str:
    """The scatter of days against USD, with its front."""
    points = _points(found.ranked)
    if len(points) < 2:  # one mark says no more than the verdict
        return ""
    return charts.scatter(points, _points(found.pareto), "days", "USD")


def _points(found: Sequence[Estimate]) -> list[Point]:
    points = []
    for item in found:
        run = item.campaign or item.run
        if run is not None and run.cost_usd and run.days > 0:
            label = f"{name(item)}: {days(run.days)}, {usd(run.cost_usd)}"
            points.append(Point(run.days, run.cost_usd, item.hardware.gpu, label))
    return points


def _scaling(found: Sequence[Estimate]) -> str:
    fastest: dict[tuple[str, int], Estimate] = {}
    for item in found:
        key = (item.hardware.gpu, item.hardware.count)
        if item.throughput is not None and _speed(item) > _speed(fastest.get(key)):
            fastest[key] = item
    if len({gpus for _, gpus in fastest}) < 2:
        return ""
    points = [
        Point(gpus, _speed(item), gpu, f"{name(item)}: {few_digits(_speed(item))} samples/s")
        for (gpu, gpus), item in fastest.items()
    ]
    return charts.lines(points, "GPUs", "samples per second")


def _speed(item: Estimate | None) -> float:
    return item.throughput.samples_per_second if item is not None and item.throughput is not None else 0.0


def _costs(best: Estimate, run: Run) -> dict[str, Any]:
    whole = best.campaign or run
    rows = [
        [part.what, "?" if part.usd is None else few_digits(part.usd), part.source, part.date or ""]
        for part in whole.cost_lines
    ]
    lines = [] if rows else [f"Cost not known: {whole.cost_source}"]
    if whole.billed_gpu_hours is not None and whole.billed_gpu_hours > 1.001 * whole.gpu_hours:
        lines.append(
            f"{few_digits(whole.billed_gpu_hours)} GPU-hours are charged for {few_digits(whole.gpu_hours)} "
            "that are used: whole nodes, or a fleet that is paid while idle"
        )
    if whole.energy_kwh is not None:
        lines.append(f"{few_digits(whole.energy_kwh)} kWh with the server and the building")
    if whole.co2_kg is not None:
        lines.append(f"{few_digits(whole.co2_kg)} kg of CO2 at the grid intensity that the spec gives")
    if run.break_even is not None:
        even = run.break_even
        after = f"after {few_digits(even.months)} months" if even.months is not None else "never: running costs more"
        lines.append(
            f"Buying the GPUs of one run ({usd(even.buy_usd)}, then {usd(even.running_usd_per_month)} of electricity "
            f"a month) beats renting them ({usd(even.rent_usd_per_month)} a month of full use) {after}"
        )
    return {"rows": rows, "lines": lines, "sources": run.break_even.sources if run.break_even else []}


def _months(best: Estimate) -> dict[str, Any] | None:
    spent = best.campaign or best.run
    headers, body = burn.rows(spent) if spent is not None else ([], [])
    return {"headers": headers, "rows": body, "whose": f"on {campaign.fleet_name(best)}"} if body else None


def _excluded(excluded: Sequence[Excluded]) -> list[list[str]]:
    return [[str(number), machines, reason] for number, machines, reason in grouped(excluded)]


def _known(best: Estimate) -> list[list[str]]:
    run = best.campaign or best.run
    rows = [["memory", KNOWN[best.memory.known], "a trace of the model, replayed through torch's caching allocator"]]
    if best.step is not None:
        floor = f"physical floor {seconds(best.step.floor_seconds)}"
        rows.append(["step time", KNOWN[best.step.known], f"{seconds(best.step.seconds)}; {floor}"])
    if run is not None:
        rows.append(["days", "steps x step time", f"{count(best.run.steps)} steps" if best.run else ""])
        rows.append(["cost", run.cost_source or "", run.cost_date or "undated"])
    if run is not None and run.energy_kwh is not None:
        from catalog.system import energy_source

        rows.append(["energy", "rated power x server, training share and PUE", energy_source()])
    return rows


__all__ = ["content", "headline", "html", "time_and_cost", "title"]
