"""Answers: measured and modelled quantities put into the words and units of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from catalog.store import DATA, load_yaml
from planner.answer import Known, Memory, Run, Step, Throughput, weakest
from planner.fit import Fit
from planner.machine import Machine
from planner.spec import Spec
from planner.step import StepTime
from planner.strategy import BatchPlan
from planner.workload import Workload

DAY_S = 86_400.0
HOUR_S = 3_600.0
WAITS = 0.05  # of a step in which the device waits for the host, from which on the host's speed makes the range


def memory_answer(found: Fit, workload: Workload, machine: Machine) -> Memory:
    """Memory of one GPU, and of its node's host. The trace is exact and the residual measured on a GPU; usable memory
    may be derived."""
    known: Known = "measured" if machine.known == "measured" else "transferred"
    timeline = found.timeline
    return Memory(
        peak_allocated_bytes=timeline.peak_allocated_bytes,
        peak_reserved_bytes=timeline.peak_reserved_bytes,
        device_bytes=found.device_bytes,
        usable_bytes=machine.usable_bytes,
        low_bytes=found.low_bytes,
        high_bytes=found.high_bytes,
        peak_phase=timeline.peak_phase,
        by_phase=timeline.peaks,
        by_category=timeline.by_category,
        host_bytes=workload.host_bytes * machine.choice.gpus_in_node,
        known=known,
    )


@cache
def ranges() -> Mapping[str, Any]:
    """Measured over predicted seconds, by how a step is known and what its range goes by; 90 % of runs lie within."""
    data: Mapping[str, Any] = load_yaml(DATA / "ranges.yaml")
    return data


def range_class(host_bound_share: float, *, compiled: bool) -> str:
    """What a step's range goes by, beside how it is known."""
    return "host" if host_bound_share > WAITS else "compiled" if compiled else "device"


def step_range(known: Known, host_bound_share: float, *, compiled: bool) -> tuple[float, float]:
    """Factors from a step's seconds to the ends of its range; a class without runs takes the device's."""
    table = ranges()[known]
    row = table.get(range_class(host_bound_share, compiled=compiled), table["device"])
    return float(row["low"]), float(row["high"])


def step_answer(
    time: StepTime, machine: Machine, host_step: tuple[float, float] = (1.0, 1.0), *, compiled: bool = False
) -> Step:
    """Seconds of one optimizer step with the range of its least known term, the host's share and compilation.
    `host_step`: what an offloaded optimizer may take, over what it is taken to take."""
    known = weakest(*time.words)  # type: ignore[arg-type]
    if time.host_step_seconds:
        known = weakest(known, "prior")
    at_least, at_most = (time.host_step_seconds * factor for factor in host_step)
    rest = time.seconds - time.host_step_seconds
    share = time.host_bound_share
    low, high = step_range(known, share, compiled=compiled)
    return Step(
        seconds=time.seconds,
        low_seconds=max(time.floor_seconds, rest * low + at_least),
        high_seconds=rest * high + at_most,
        forward_seconds=time.forward_seconds,
        backward_seconds=time.backward_seconds,
        optimizer_seconds=time.optimizer_seconds,
        communication_seconds=time.communication_seconds,
        exposed_communication_seconds=time.exposed_communication_seconds,
        host_bound_share=share,
        floor_seconds=time.floor_seconds,
        known=known,
    )


def throughput_answer(
    step: Step, time: StepTime, batches: BatchPlan, workload: Workload, machine: Machine
) -> Throughput:
    """Samples of the whole machine, tokens of one GPU, and MFU: model FLOP (full attention) over the dense peak."""
    samples = batches.global_batch / step.seconds
    tokens = workload.samples_to_tokens
    peak = peak_flop_per_s(workload, machine)
    return Throughput(
        samples_per_second=samples,
        tokens_per_second_per_gpu=samples * tokens / machine.count if tokens > 1 else None,
        mfu=time.flop / step.seconds / peak,
    )


def peak_flop_per_s(workload: Workload, machine: Machine) -> float:
    """The dense peak of one GPU in the dtype of the workload's products."""
    peaks = machine.accelerator.peak_flop_per_s
    low = {
        spec.dtype
        for call in workload.calls
        for spec in call.results
        if call.name.startswith(("mm.", "addmm.", "bmm.", "convolution."))
    }
    if "bf16" in low and "bf16" in peaks:
        return peaks["bf16"]
    return peaks["fp16"] if "f16" in low and "fp16" in peaks else peaks.get("fp32", next(iter(peaks.values())))


def run_answer(
    spec: Spec, step: Step, batches: BatchPlan, workload: Workload, machine: Machine, start_seconds: float = 0.0
) -> Run | None:
    """Days and GPU-hours of the whole of `data.total`, None without one; what they cost is for money.py to say.

    `start_seconds` pass before the first step, as compiling does.
    """
    total = spec.data.amount()
    if total is None:
        return None
    samples = {
        "steps": total.amount * batches.global_batch,
        "samples": total.amount,
        "tokens": total.amount / workload.samples_to_tokens,
        "epochs": total.amount * (total.epoch_samples or 0),
    }[total.kind]
    steps = max(1, round(samples / batches.global_batch))
    days = (start_seconds + steps * step.seconds) / DAY_S
    gpu_hours = days * 24 * machine.count
    return Run(
        steps=steps,
        days=days,
        low_days=(start_seconds + steps * step.low_seconds) / DAY_S,
        high_days=(start_seconds + steps * step.high_seconds) / DAY_S,
        gpu_hours=gpu_hours,
    )
