"""Run a spec for a few real steps and say what it took: peaks of memory, seconds by phase, what the host needed.

`python -m calibrate.train CASES.yaml -o RUNS.jsonl` runs a list of cases, each in a process of its own.
"""

from __future__ import annotations

import gc
import statistics
import time
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from calibrate import history, loop
from calibrate.loop import Training
from catalog.errors import RigplanError
from planner.spec import Spec

LIFE_STEPS = 3  # from the first step, which makes the optimizer's states, to a steady one: what the peaks cover
LEAST_SECONDS = 1.5  # of timed steps
MOST_SECONDS = 8.0
STEPS = 5  # timed at least, unless they take too long
PLACES = 6  # of an unexpected error's way that a record keeps
PHASES = ("forward", "backward", "optimizer")
ATTENTION = "ScaledDotProduct"  # what the autograd node of every fused attention kernel is named after

Record = dict[str, Any]


def run(
    spec: Spec | Mapping[str, Any],
    steps: int = STEPS,
    device: str = "cuda",
    memory_fraction: float | None = None,
    keep_history: Path | None = None,
) -> Record:
    """Train `spec` for a few steps; one JSON record, whose memory fields are None where `device` has no allocator.

    Running out of memory is a result ({"oom": True, ...}), and so is a failure of model or library ({"error": ...});
    RigplanError is raised for what cannot be run at all.
    Seconds are medians with quartiles, bytes torch's own count. `keep_history` names a file for the allocator's events.
    """
    spec = Spec.load(spec)
    record: Record = {"spec": spec.model_dump(mode="json", exclude_unset=True), **_versions(device)}
    if device == "cuda":
        _open(spec, memory_fraction, record)
    stage = "load"
    try:
        training = loop.prepare(spec, device)
        record |= _described(training)
        if device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()  # what initialisation left behind is not the training's
        record |= _now(device, "loaded")
        stage = "first steps"
        record |= _life(training, keep_history)
        stage = "phases"
        record |= _phases(training)
        stage = "timing"
        record |= _times(training, steps)
        record["loss"] = float(training.loss) if training.loss is not None else None
    except torch.OutOfMemoryError as error:
        record |= {"oom": True, "stage": stage, "message": str(error).split("\n")[0][:600], **_now(device, "failed")}
    except RigplanError:
        raise
    except Exception as error:  # what was measured until then is kept, with the place where it went wrong
        record |= {"error": type(error).__name__, "stage": stage, "message": str(error)[:800], "where": _where(error)}
    return record | _footprint(device)


def _where(error: BaseException) -> list[str]:
    """The last calls that led to the error, outermost first."""
    frames = traceback.extract_tb(error.__traceback__)[-PLACES:]
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}: {frame.line}" for frame in frames]


def _versions(device: str) -> Record:
    import transformers

    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "transformers": transformers.__version__,
    }


def _open(spec: Spec, memory_fraction: float | None, record: Record) -> None:
    """Start the allocator as asked, before anything is allocated."""
    if spec.training.allocator == ("expandable",):
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    record |= {"total_bytes": total_bytes, "start_used_bytes": total_bytes - free_bytes}
    if memory_fraction is not None:
        torch.cuda.set_per_process_memory_fraction(memory_fraction)
        record |= {"memory_fraction": memory_fraction, "limit_bytes": int(memory_fraction * total_bytes)}


def _described(training: Training) -> Record:
    parameters = list(training.module.parameters())
    return {
        "strategy": asdict(training.strategy),
        "micro_batch": training.micro_batch,
        "accumulation": training.accumulation,
        "tokens_per_sample": training.tokens_per_sample,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trainable_parameters": sum(parameter.numel() for parameter in training.trainable),
        "parameter_bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        "inputs": {name: [str(value.dtype), *value.shape] for name, value in training.inputs.items()},
        "notes": list(training.notes),
    }


def _now(device: str, when: str) -> Record:
    known = device == "cuda"
    return {
        f"{when}_allocated_bytes": torch.cuda.memory_allocated() if known else None,
        f"{when}_reserved_bytes": torch.cuda.memory_reserved() if known else None,
    }


def _peak(device: str, reset: bool = False) -> tuple[int, int] | None:
    """The most bytes allocated and reserved since the last reset."""
    if device != "cuda":
        return None
    peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return peaks


def _life(training: Training, keep_history: Path | None) -> Record:
    """Peaks over the first steps of a life, as a user who starts a run meets them."""
    _peak(training.device, reset=True)
    events = []
    recorded = keep_history is not None and training.device == "cuda"
    for number in range(LIFE_STEPS):
        with history.recorded() if recorded else history.unrecorded() as found:
            training.step()
        if recorded:
            events.append({"step": number, **found})
    _wait(training.device)
    if events and keep_history is not None:
        history.write(keep_history, events)
    peaks = _peak(training.device)
    return {
        "peak_allocated_bytes": peaks[0] if peaks else None,
        "peak_reserved_bytes": peaks[1] if peaks else None,
        **_now(training.device, "after_step"),
    }


def _phases(training: Training) -> Record:
    """Peaks of one more step by phase, what was live at each boundary, and the attention kernels that ran."""
    peaks: dict[str, list[int]] = {phase: [] for phase in PHASES}
    live: dict[str, int] = {}

    def mark(phase: str) -> None:
        seen = _peak(training.device, reset=True)
        if seen is not None:
            peaks[phase].append(seen[0])
            live[phase] = torch.cuda.memory_allocated()

    _peak(training.device, reset=True)
    # Counting replaces a function of torch's, for which a compiled module would be compiled anew.
    with nullcontext({}) if training.strategy.compile else _attention_kernels() as kernels:
        training.step(mark)
    _wait(training.device)
    record: Record = {f"{phase}_peak_bytes": max(found) if found else None for phase, found in peaks.items()}
    record |= {f"after_{phase}_allocated_bytes": live.get(phase) for phase in PHASES}
    return record | {"attention_kernels": kernels}


class _attention_kernels:  # a context manager, named as it is used
    """Counts the attention calls of a step by the kernel that took them, read off their autograd nodes."""

    def __enter__(self) -> dict[str, int]:
        self._counts: dict[str, int] = {}
        self._real = torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = self._counting
        return self._counts

    def __exit__(self, *_: object) -> None:
        torch.nn.functional.scaled_dot_product_attention = self._real

    def _counting(self, *arguments: Any, **settings: Any) -> torch.Tensor:
        out = self._real(*arguments, **settings)
        name = _attention_node(out.grad_fn)
        self._counts[name] = self._counts.get(name, 0) + 1
        return out


def _attention_node(node: Any, depth: int = 4) -> str:
    """flash, efficient, cudnn or math: a fused kernel's node lies at most a slice and a transpose above."""
    while node is not None and depth:
        name = node.name()
        if name.startswith(ATTENTION):
            return name.removeprefix(ATTENTION).partition("Attention")[0].lower()
        node, depth = (node.next_functions[0][0] if node.next_functions else None), depth - 1
    return "math"


def _times(training: Training, steps: int) -> Record:
    """Seconds of steps that start on an idle device and are waited for, by phase and by clock."""
    on_device = training.device == "cuda"
    taken: dict[str, list[float]] = {}
    began = time.perf_counter()
    while len(taken.get("step_seconds", ())) < steps or time.perf_counter() - began < LEAST_SECONDS:
        watch = _Watch(on_device)
        _wait(training.device)
        watch.mark("")
        training.step(watch.mark)
        issued = time.perf_counter()
        _wait(training.device)
        ended = time.perf_counter()
        start = watch.host[0][1]
        sample = {"step_seconds": ended - start, "host_seconds": issued - start, **watch.phases()}
        for name, value in sample.items():
            taken.setdefault(name, []).append(value)
        if ended - began > MOST_SECONDS:
            break
    record: Record = {"timed_steps": len(taken["step_seconds"])}
    for name, values in taken.items():
        record[name] = statistics.median(values)
    record["step_low_seconds"], record["step_high_seconds"] = _quartiles(taken["step_seconds"])
    return record | {"pipelined_seconds": _pipelined(training, record["step_seconds"])}


def _pipelined(training: Training, step_seconds: float) -> float:
    """Seconds a step when steps follow each other without waiting, as in training."""
    count = max(2, min(20, int(LEAST_SECONDS / step_seconds)))
    _wait(training.device)
    began = time.perf_counter()
    for _ in range(count):
        training.step()
    _wait(training.device)
    return (time.perf_counter() - began) / count


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


class _Watch:
    """Marks of one step on two clocks: when the host had issued a phase, and when the device was done with it."""

    def __init__(self, on_device: bool) -> None:
        self.on_device = on_device
        self.host: list[tuple[str, float]] = []
        self.events: list[torch.cuda.Event] = []

    def mark(self, phase: str) -> None:
        self.host.append((phase, time.perf_counter()))
        if self.on_device:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.events.append(event)

    def phases(self) -> dict[str, float]:
        """Seconds by phase, once the device has been waited for; without one, the host's clock is the device's."""
        totals = {f"{phase}_{clock}seconds": 0.0 for clock in ("", "host_") for phase in PHASES}
        for index in range(1, len(self.host)):
            phase, ended = self.host[index]
            host = ended - self.host[index - 1][1]
            device = self.events[index - 1].elapsed_time(self.events[index]) / 1000 if self.on_device else host
            totals[f"{phase}_host_seconds"] += host
            totals[f"{phase}_seconds"] += device
        return totals


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _footprint(device: str) -> Record:
    """What the driver says is taken: the process's share where it tells, all of the device, and what is not torch's."""
    if device != "cuda":
        return {"device_bytes": None, "context_bytes": None}
    from calibrate import device as facts

    free_bytes, total_bytes = torch.cuda.mem_get_info()
    used = total_bytes - free_bytes
    return {
        "device_bytes": used,
        "context_bytes": used - torch.cuda.memory_reserved(),
        "process_bytes": facts.process_bytes(),
        "end_reserved_bytes": torch.cuda.memory_reserved(),
    }


if __name__ == "__main__":
    from calibrate.cases import main

    main()
