"""One estimate as a page: the verdict, the memory behind it, the step, the run, and what was taken for granted."""

from __future__ import annotations

from catalog.units import GIB, count, days, gib, seconds, usd
from planner.answer import CostLine, Estimate, Run, Step, WithinBudget
from planner.report import burn, campaign
from planner.report.layout import few_digits, listed, size, table

KNOWN = {
    "measured": "measured on this GPU",
    "transferred": "transferred from measurements on other GPUs",
    "prior": "from published efficiencies",
    "ideal": "from the datasheet alone",
}
WORDS = "floor: the datasheet at its best; host-bound: waiting for Python; MFU: model FLOP over the dense peak"


def page(found: Estimate, source: str = "SPEC") -> str:
    """The whole answer; `source` is what the spec was read from."""
    parts = [verdict(found), setting(found), *warned(found, source), "", *_memory(found)]
    if found.step is not None:
        parts += ["", *_step(found, found.step)]
    if found.run is not None:
        parts += ["", *_run(found.run)]
    if found.campaign is not None:
        parts += campaign.section([found])
    spent = found.campaign or found.run
    if spent is not None:
        parts += burn.section(spent, f"on {campaign.fleet_name(found)}")
    if found.within_budget is not None:
        parts += ["", _within(found.within_budget)]
    parts += listed("Notes", found.notes)
    parts += listed("Assumed", found.assumptions)
    parts += listed("Not modelled", found.unmodelled)
    return "\n".join(parts)


def verdict(found: Estimate) -> str:
    """The first line: ``fits: 16.8 of 139.8 GiB, 123.0 GiB free (17.6 to 18.4 GiB)``."""
    memory = found.memory
    spare = memory.usable_bytes - max(memory.device_bytes, memory.low_bytes if found.verdict == "does-not-fit" else 0)
    room = f"{size(spare)} GiB free" if spare >= 0 else f"{size(-spare)} GiB missing"
    used = memory.device_bytes if spare >= 0 else memory.usable_bytes - spare
    between = f"{size(memory.low_bytes)} to {size(memory.high_bytes)} GiB"
    return f"{found.verdict}: {size(used)} of {size(memory.usable_bytes)} GiB, {room} ({between})"


def setting(found: Estimate) -> str:
    """What was asked, in two lines."""
    knobs, machine = found.strategy, found.hardware
    trained = "" if found.trainable_parameters == found.parameters else f", {count(found.trainable_parameters)} trained"
    extras = [
        f"checkpointing {knobs.checkpointing}" if knobs.checkpointing != "none" else "",
        f"loss {knobs.loss}" if knobs.loss != "eager" else "",
        f"sharding {knobs.sharding}" if knobs.sharding != "none" else "",
        f"tensor parallel {knobs.tensor_parallel}" if knobs.tensor_parallel > 1 else "",
        f"offload {knobs.offload}" if knobs.offload != "none" else "",
        f"allocator {knobs.allocator}" if knobs.allocator != "default" else "",
    ]
    words = [knobs.precision, f"{knobs.attention} attention", f"{knobs.optimizer} {knobs.optimizer_implementation}"]
    batch = (
        f"micro-batch {knobs.micro_batch} x accumulation {knobs.accumulation} x {machine.count} = {knobs.global_batch}"
    )
    return (
        f"{machine.count} x {machine.gpu}, {count(found.parameters)} parameters{trained}, {batch}\n"
        f"{', '.join([*words, *filter(None, extras)])}"
    )


def warned(found: Estimate, source: str) -> list[str]:
    """Before a time and a cost: that the run may never get there, and where to find what helps."""
    if found.step is None or found.verdict == "fits":
        return []
    if found.verdict == "borderline":
        return [f"It may run out of memory: `rigplan fits {source}` shows what makes it fit for certain."]
    return [f"It runs out of memory: no run takes the time below. `rigplan fits {source}` shows what makes it fit."]


def _memory(found: Estimate) -> list[str]:
    memory = found.memory
    peak = memory.peak_allocated_bytes
    rows = [
        [name, size(held), f"{held / peak:.0%}"]
        for name, held in sorted(memory.by_category.items(), key=lambda item: -item[1])
        if held >= GIB / 200
    ]
    rows.append(["allocated at the peak", size(peak), "100%"])
    rows.append(["+ kept by the allocator", size(memory.peak_reserved_bytes - peak), ""])
    rows.append(["+ CUDA context", size(max(0, memory.device_bytes - memory.peak_reserved_bytes)), ""])
    title = f"Memory of one GPU at its peak, in {memory.peak_phase} ({memory.known})"
    lines = [title, table(rows, ["", "GiB", "share"], "lrr")]
    if memory.by_phase:
        peaks = ", ".join(f"{phase} {size(most)}" for phase, most in memory.by_phase.items())
        lines.append(f"  Allocated at most: {peaks} GiB")
    if memory.device_bytes < memory.peak_reserved_bytes:
        lines.append("  Near the limit the allocator gives its cache back, so that less than the sum is taken.")
    if memory.host_bytes:
        lines.append(f"  Host memory: {gib(memory.host_bytes)}")
    return lines


def _step(found: Estimate, step: Step) -> list[str]:
    parts = [
        ("forward", step.forward_seconds),
        ("backward", step.backward_seconds),
        ("optimizer", step.optimizer_seconds),
        ("communication not hidden", step.exposed_communication_seconds),
    ]
    rows = [[name, seconds(value), f"{value / step.seconds:.0%}"] for name, value in parts if value > 0]
    between = f"{seconds(step.low_seconds)} to {seconds(step.high_seconds)}"
    lines = [
        f"Step: {seconds(step.seconds)} ({between}), {KNOWN[step.known]}",
        table(rows, ["", "time", "share"], "lrr"),
    ]
    facts = [f"floor {seconds(step.floor_seconds)}", f"host-bound {step.host_bound_share:.0%}"]
    if found.throughput is not None:
        speed = found.throughput
        facts.append(f"{few_digits(speed.samples_per_second)} samples/s")
        if speed.tokens_per_second_per_gpu is not None:
            facts.append(f"{few_digits(speed.tokens_per_second_per_gpu)} tokens/s a GPU")
        facts.append(f"MFU {speed.mfu:.0%}")
    return [*lines, f"  {', '.join(facts)}", f"  {WORDS}"]


def _run(run: Run) -> list[str]:
    lines = [f"Run: {days(run.days)} ({days(run.low_days)} to {days(run.high_days)}), {count(run.steps)} steps"]
    if run.cost_usd is None:
        lines.append(f"  cost not known: {run.cost_source}")
    else:
        dated = f", {run.cost_date}" if run.cost_date else ""
        lines.append(f"  {usd(run.cost_usd)} for {few_digits(run.gpu_hours)} GPU-hours ({run.cost_source}{dated})")
    if run.cost_is_old:
        lines.append("  OLD PRICE, more than 90 days; ask again before you budget")
    if run.energy_kwh is not None:
        emitted = f", {few_digits(run.co2_kg)} kg of CO2" if run.co2_kg is not None else ""
        lines.append(f"  {few_digits(run.energy_kwh)} kWh with the server and the building{emitted}")
    if run.units is not None:
        lines.append(f"  {run.units:,.0f} {run.unit} of the programme")
    if len(run.cost_lines) > 1:
        lines += [f"    {part.what}: {usd(part.usd or 0.0)} ({_dated(part)})" for part in run.cost_lines]
    even = run.break_even
    if even is not None and even.months is not None:
        lines.append(
            f"  buying ({usd(even.buy_usd)}) beats renting ({usd(even.rent_usd_per_month)} a month) "
            f"after {few_digits(even.months)} months of full use"
        )
    return lines


def _dated(part: CostLine) -> str:
    return ", ".join(filter(None, (part.source, part.date)))


def _within(bought: WithinBudget) -> str:
    what = f"{count(bought.tokens)} tokens" if bought.tokens is not None else f"{count(bought.samples)} samples"
    paid = f" and {usd(bought.usd)}" if bought.usd is not None else ""
    limit = "USD" if bought.bound == "usd" else "time"
    return f"The budget buys {what} in {days(bought.days)}{paid}; the limit is {limit}"


__all__ = ["page", "setting", "verdict", "warned"]
