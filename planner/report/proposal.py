"""Proposal: the table that a reviewer of a compute request wants, and the paragraph with it, in a programme's unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from catalog.errors import RigplanError, did_you_mean
from catalog.store import DATA, load_yaml
from catalog.units import GIB, count, gib, usd
from planner.answer import Activity, Campaign, Estimate, Plan, Run
from planner.report.estimate import KNOWN
from planner.report.layout import few_digits, several
from planner.spec import Spec
from planner.tariff import USUAL_NODE_GPUS

HEADERS = (
    "activity", "model / data", "runs", "GPUs", "throughput", "work per run", "wall h / run", "GPU-h / run", "overhead",
    "GPU-h total", "total",
)  # fmt: skip
STATE_BYTES_PER_PARAMETER = 12  # fp32 weights and both Adam states, as a checkpoint that can be resumed holds


@dataclass(frozen=True, slots=True)
class Proposal:
    """A filled request: rows under HEADERS, the paragraph, and whose form it follows."""

    programme: str
    title: str
    unit: str
    rows: list[list[str]]
    text: str
    note: str
    source: str


@cache
def programmes() -> Mapping[str, Any]:
    """The programmes of the catalog by name."""
    found: Mapping[str, Any] = load_yaml(DATA / "programmes.yaml")
    return found


def proposal(spec: Spec, found: Plan, programme: str) -> Proposal | None:
    """The request for the first of the ranked; None where nothing works or the run has no total.

    Raises RigplanError for a programme that is not known.
    """
    known = programmes()
    if programme not in known:
        hint = did_you_mean(programme, list(known))
        raise RigplanError(f"--programme: found {programme!r}, wanted one of {', '.join(known)}.{hint}")
    best = next((item for item in found.ranked if item.run is not None), None)
    if best is None or best.run is None:
        return None
    entry = known[programme]
    plan = best.campaign
    rows = [_row(spec, best, best.run, row, entry) for row in _activities(best.run, plan, best)]
    total_hours = plan.gpu_hours if plan else best.run.gpu_hours
    total_usd = plan.cost_usd if plan else best.run.cost_usd
    total = _in_unit(entry, best, total_hours, total_usd, plan.units if plan else best.run.units)
    rows.append(["total", "", "", "", "", "", "", "", "", few_digits(total_hours), total])
    text = " ".join(entry["text"].format_map(_fields(spec, found, best, best.run, plan, total)).split())
    return Proposal(programme, entry["title"], entry["unit"], rows, text, entry["note"], entry["source"])


def _activities(run: Run, plan: Campaign | None, best: Estimate) -> list[Activity]:
    if plan is not None:
        return plan.activities
    return [
        Activity(
            name="final",
            runs=1,
            share=1.0,
            days_per_run=run.days,
            gpu_hours_per_run=run.gpu_hours,
            overhead_gpu_hours=0.0,
            gpu_hours=run.gpu_hours,
            days=run.days,
            cost_usd=run.cost_usd,
            units=run.units,
        )
    ]


def _row(spec: Spec, best: Estimate, run: Run, row: Activity, entry: Mapping[str, Any]) -> list[str]:
    total = _in_unit(entry, best, row.gpu_hours, row.cost_usd, row.units)
    if not row.runs:
        allowance = f"{row.share:.0%} of the rows above"
        return [
            row.name,
            allowance,
            "",
            "",
            "",
            "",
            "",
            "",
            few_digits(row.gpu_hours),
            few_digits(row.gpu_hours),
            total,
        ]
    return [
        row.name,
        f"{_model(spec, best)} / {_data(spec)}",
        str(row.runs),
        f"{best.hardware.count} x {best.hardware.gpu}",
        f"{throughput(best)} ({best.step.known if best.step else ''})",
        f"{count(round(run.steps * row.share))} steps",
        few_digits(row.days_per_run * 24),
        few_digits(row.gpu_hours_per_run),
        few_digits(row.overhead_gpu_hours) if row.overhead_gpu_hours else "0",
        few_digits(row.gpu_hours),
        total,
    ]


def _in_unit(
    entry: Mapping[str, Any], best: Estimate, gpu_hours: float, cost_usd: float | None, units: float | None
) -> str:
    """An amount in the programme's unit; in the spec's own tariff where it names one."""
    if entry["per"] == "usd":
        return "cost not known" if cost_usd is None else usd(cost_usd)
    charged = (best.campaign or best.run).unit if best.campaign or best.run else None  # type: ignore[union-attr]
    if units is not None and charged is not None:
        return f"{few_digits(units)} {charged}"
    if entry["per"] == "node-hour":
        return f"{few_digits(gpu_hours / _gpus_in_node(best) * _whole(best))} node-hours"
    return f"{few_digits(gpu_hours)} GPU-hours"


def _gpus_in_node(best: Estimate) -> int:
    return best.hardware.gpus_per_node or USUAL_NODE_GPUS


def _whole(best: Estimate) -> float:
    """What charging whole nodes multiplies: GPUs that a run leaves idle in its last node, unless others fill them."""
    used, node = best.hardware.count, _gpus_in_node(best)
    side_by_side = min(best.campaign.parallel, best.campaign.runs) if best.campaign else 1
    together = used * side_by_side
    return -(-together // node) * node / together


def throughput(best: Estimate) -> str:
    """Tokens a second of all GPUs of a run, or samples."""
    speed = best.throughput
    if speed is None:
        return ""
    if speed.tokens_per_second_per_gpu is not None:
        return f"{few_digits(speed.tokens_per_second_per_gpu * best.hardware.count)} tokens/s"
    return f"{few_digits(speed.samples_per_second)} samples/s"


def _model(spec: Spec, best: Estimate) -> str:
    model = spec.model
    return (
        best.model
        or model.name
        or model.module
        or (model.config if isinstance(model.config, str) else "a model of our own")
    )


def _data(spec: Spec) -> str:
    return spec.data.total or "data"


def _fields(spec: Spec, found: Plan, best: Estimate, run: Run, plan: Campaign | None, total: str) -> dict[str, str]:
    """What a programme's text may name."""
    hours = plan.gpu_hours if plan else run.gpu_hours
    spent = sum(row.gpu_hours - row.overhead_gpu_hours for row in plan.activities if row.runs) if plan else hours
    step = best.step
    return {
        "model": _model(spec, best),
        "parameters": count(best.parameters),
        "data": _data(spec),
        "why": _why(found, best),
        "gpus": str(best.hardware.count),
        "gpu": best.hardware.gpu,
        "nodes": str(-(-best.hardware.count // _gpus_in_node(best))),
        "gpus_per_node": str(_gpus_in_node(best)),
        "steps": count(run.steps),
        "run_hours": few_digits(run.days * 24),
        "throughput": throughput(best),
        "known": f"{KNOWN[step.known]}, {run.low_days * 24:,.0f} to {run.high_days * 24:,.0f} h" if step else "",
        "runs": several(plan.runs if plan else 1, "final run"),
        "activities": _beside(plan),
        "gpu_hours": few_digits(hours),
        "overhead": f"{(hours - spent) / hours:.0%}" if hours > spent else "none",
        "total": total,
        "memory": gib(best.memory.device_bytes),
        "usable": gib(best.memory.usable_bytes),
        "checkpoint": f"{best.parameters * STATE_BYTES_PER_PARAMETER / GIB:,.1f} GiB",
        "price": ", ".join(filter(None, (run.cost_source, run.cost_date))),
        "scaling": _scaling(found, best),
    }


def _beside(plan: Campaign | None) -> str:
    others = (
        [several(row.runs, f"{row.name} run") for row in plan.activities if row.runs and row.name != "final"]
        if plan
        else []
    )
    return f" and {', '.join(others)}," if others else ","


def _why(found: Plan, best: Estimate) -> str:
    tried = len({(item.hardware.gpu, item.hardware.fleet or item.hardware.count) for item in found.ranked})
    machine = f"{best.hardware.count} {best.hardware.gpu}"
    if tried < 2 or not found.question:
        return f"We use {machine} a run."
    return f"We use {machine} a run: of {tried} machines compared, this is {found.question}."


def _scaling(found: Plan, best: Estimate) -> str:
    """Samples a second at each GPU count of this card that was planned."""
    speeds: dict[int, float] = {}
    for item in found.ranked:
        if item.hardware.gpu == best.hardware.gpu and item.throughput is not None:
            n = item.hardware.count
            speeds[n] = max(speeds.get(n, 0.0), item.throughput.samples_per_second)
    if len(speeds) < 2:
        return ""
    least = min(speeds)
    told = [f"{n} GPUs {rate / (speeds[least] * n / least):.0%}" for n, rate in sorted(speeds.items())]
    return f"Scaling efficiency: {', '.join(told)}."


__all__ = ["HEADERS", "Proposal", "programmes", "proposal", "throughput"]
