"""Outcome: one combination of a spec with its micro-batch settled: an Estimate, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from catalog.overheads import overheads
from catalog.units import gib, seconds
from planner import machine as machines
from planner.answer import Estimate
from planner.cache import ANCHORS, TraceKnobs, Workloads
from planner.communication import call_seconds, sm_share, waiting_share
from planner.evaluate import Progress, evaluate, knobs_of, not_possible, of_rank
from planner.fit import Fit, fit
from planner.machine import Machine
from planner.question import How
from planner.reach import Predict, affine, largest
from planner.spec import Spec
from planner.step import step_time
from planner.strategy import BatchPlan, HardwareChoice, Strategy, batch_plan, micro_batches
from planner.workload import Workload

# How far a micro-batch of 1 may be predicted from traces of larger ones: beyond this share over, it needs no trace.
CLEARLY_OVER = 1.05
# Micro-steps that are enough to compare two micro-batches by their steady seconds a sample.
FEW, SOME = 2, 4


class Outcomes:
    """The outcomes of one spec; what its combinations share (traces, replays, predictions) is found once."""

    def __init__(self, spec: Spec, profile: str = "", progress: Progress | None = None) -> None:
        self.spec, self.profile = spec, profile
        self.workloads = Workloads(spec.model, spec.data, progress)
        self._predictions: dict[tuple[TraceKnobs, str, str, int, bool], Predict] = {}

    def of(self, strategy: Strategy, choice: HardwareChoice, how: How) -> Estimate | str:
        """One combination, answered as `how` says."""
        machine = machines.resolve(choice, self.profile)
        reason = not_possible(strategy, machine)
        if reason:
            return reason
        sizes = micro_batches(strategy, choice)
        if len(sizes) == 1:
            return self._settled(strategy, machine, sizes[0], how)
        if strategy.compile:
            return self._compiled(strategy, machine, sizes, how)
        knobs = knobs_of(strategy, machine)
        found = self._largest(strategy, machine, knobs, sizes)
        if found is None and not how.whole:
            return self._too_large(strategy, machine, knobs, sizes[0])
        if found is None:
            return self._settled(strategy, machine, sizes[0], how)
        if not how.timed:
            note = f"micro_batch auto: {found} is the largest that fits"
            return self._evaluated(strategy, machine, found, self.workloads.searched(knobs, found), how.timed, note)
        best, note = self._fastest(strategy, machine, knobs, [size for size in sizes if size <= found])
        return self._evaluated(strategy, machine, best, self.workloads.searched(knobs, best), how.timed, note)

    def _settled(self, strategy: Strategy, machine: Machine, micro_batch: int, how: How) -> Estimate | str:
        knobs = knobs_of(strategy, machine)
        read = self.workloads.searched if how.read_off else self.workloads.at
        return self._evaluated(strategy, machine, micro_batch, read(knobs, micro_batch), how.timed)

    def _compiled(self, strategy: Strategy, machine: Machine, sizes: Sequence[int], how: How) -> Estimate | str:
        """At the micro-batch that is best uncompiled, or the next smaller power of two that fits: a compiled model is
        compiled anew for each size, which takes minutes, and nothing between two of them can be read off."""
        eager = replace(strategy, compile=False)
        plain, knobs = knobs_of(eager, machine), knobs_of(strategy, machine)
        best = self._largest(eager, machine, plain, sizes)
        if best is not None and how.timed:
            best, _ = self._fastest(eager, machine, plain, [size for size in sizes if size <= best])
        smaller = sorted((size for size in sizes if size.bit_count() == 1 and size < (best or 0)), reverse=True)
        for size in (best or sizes[0], *smaller):
            workload = self.workloads.searched(knobs, size)
            note = f"micro_batch auto: {size}, which is " + ("best" if size == best else "less than what is best")
            found = self._evaluated(strategy, machine, size, workload, how.timed, f"{note} uncompiled")
            if isinstance(found, str) or found.verdict == "fits":
                break
        return found

    def _evaluated(
        self, strategy: Strategy, machine: Machine, micro_batch: int, workload: Workload, timed: bool, note: str = ""
    ) -> Estimate | str:
        self.workloads.progress(f"replaying the memory{' and pricing the step' if timed else ''}")
        batches = batches_at(strategy, machine, micro_batch)
        found = evaluate(self.spec, strategy, machine, batches, workload, timed=timed)
        short = host_short(found.memory.host_bytes, machine)
        if short:
            return short
        return found.model_copy(update={"notes": [*found.notes, note]}) if note else found

    def _largest(self, strategy: Strategy, machine: Machine, knobs: TraceKnobs, sizes: Sequence[int]) -> int | None:
        """The largest micro-batch that fits; where none does for certain, the largest that may."""
        predicted, limit = self._predicted(strategy, machine, knobs), _limit_bytes(machine)
        room = CLEARLY_OVER * machine.usable_bytes
        seen: dict[int, str] = {}

        def verdict(size: int) -> str:
            if size not in seen:
                clear = size < ANCHORS[0] and predicted(size) > room
                seen[size] = "does-not-fit" if clear else self._fit(strategy, machine, knobs, size).verdict
            return seen[size]

        firm = largest(sizes, lambda size: verdict(size) == "fits", predicted, limit)
        if firm is not None:
            return firm
        return max((size for size, word in seen.items() if word == "borderline"), default=None)

    def _fit(self, strategy: Strategy, machine: Machine, knobs: TraceKnobs, size: int) -> Fit:
        batches = batches_at(strategy, machine, size)
        workload = of_rank(self.workloads.searched(knobs, size), strategy, machine)
        return fit(workload, strategy, machine, batches.accumulation)

    def _predicted(self, strategy: Strategy, machine: Machine, knobs: TraceKnobs) -> Predict:
        """Allocated bytes by micro-batch: near enough affine, so that the two traces give the line.

        Accumulated micro-steps and replicas have lines of their own; GPUs differ by little, so the first one's serves.
        """
        accumulated = strategy.accumulation != 1 and strategy.global_batch is not None
        key = (knobs, strategy.sharding, strategy.zero1, machine.count, accumulated)
        if key not in self._predictions:
            points = []
            for size in ANCHORS:
                workload = of_rank(self.workloads.searched(knobs, size), strategy, machine)
                found = fit(workload, strategy, machine, 1 + accumulated)
                points.append((size, float(found.timeline.peak_allocated_bytes)))
            self._predictions[key] = affine(points[0], points[1])
        return self._predictions[key]

    def _fastest(
        self, strategy: Strategy, machine: Machine, knobs: TraceKnobs, sizes: Sequence[int]
    ) -> tuple[int, str]:
        """Of the largest that fits and the next power of two below, the one with the least seconds a sample; and what
        was compared, in words."""
        top = sizes[-1]
        below = max((size for size in sizes if size < top and size.bit_count() == 1), default=top)
        if below == top:
            return top, f"micro_batch auto: {top} is the largest that fits"
        took = {size: self._seconds_a_sample(strategy, machine, knobs, size) for size in (below, top)}
        first, second = sorted(took, key=lambda size: took[size])
        told = {size: f"{size}{', the largest that fits,' if size == top else ''}" for size in took}
        return first, (
            f"micro_batch auto: {told[first]} takes {seconds(took[first])} a sample, {told[second]} takes "
            f"{seconds(took[second])}"
        )

    def _seconds_a_sample(self, strategy: Strategy, machine: Machine, knobs: TraceKnobs, size: int) -> float:
        workload = of_rank(self.workloads.searched(knobs, size), strategy, machine)
        batches = batches_at(strategy, machine, size)
        pricing = machine.pricing(tf32=strategy.precision == "tf32")
        transfer = call_seconds(workload, strategy, machine)

        def step_s(rounds: int) -> float:
            return step_time(
                workload,
                pricing,
                accumulation=rounds,
                transfer=transfer,
                sm_share=sm_share(machine),
                waiting_share=waiting_share(machine),
            ).seconds

        if batches.accumulation <= SOME:
            return step_s(batches.accumulation) / batches.global_batch
        steady = (step_s(SOME) - step_s(FEW)) / (SOME - FEW)
        return (step_s(FEW) + steady * (batches.accumulation - FEW)) / batches.global_batch

    def _too_large(self, strategy: Strategy, machine: Machine, knobs: TraceKnobs, smallest: int) -> str:
        needed = self._predicted(strategy, machine, knobs)(smallest) + machine.context_bytes[1]
        phase = ""
        if smallest >= ANCHORS[0] or needed <= CLEARLY_OVER * machine.usable_bytes:
            found = self._fit(strategy, machine, knobs, smallest)
            needed, phase = found.device_bytes, found.timeline.peak_phase
        return too_large(needed, machine.usable_bytes, phase, f"even at micro-batch {smallest}")


def too_large(needed_bytes: float, usable_bytes: int, phase: str, where: str) -> str:
    """The reason of a combination that does not fit: how much is missing, and when."""
    missing = max(0.0, needed_bytes - usable_bytes)
    when = f", peak in {phase}" if phase else ""
    lacks = f", {gib(missing)} missing" if missing else ""
    return f"does not fit {where}: needs {gib(needed_bytes)} of {gib(usable_bytes)}{lacks}{when}"


def host_short(needed_bytes: int, machine: Machine) -> str | None:
    """Why an offloaded run cannot be: the host has less memory than it needs. None where it has enough."""
    there = machine.choice.host_memory_bytes or machine.node.host_memory_bytes
    if needed_bytes <= there:
        return None
    return (
        f"offload needs {gib(needed_bytes)} of host memory a node, and there are {gib(there)}; use a larger host "
        "(hardware.host_memory), more nodes, or offload: none"
    )


def batches_at(strategy: Strategy, machine: Machine, micro_batch: int) -> BatchPlan:
    """The batch plan with this micro-batch, which must be one of `micro_batches`."""
    batches = batch_plan(replace(strategy, micro_batch=micro_batch), machine.choice)
    if isinstance(batches, str):
        raise ValueError(batches)
    return batches


def _limit_bytes(machine: Machine) -> float:
    share = float(overheads()["residual"]["memory"]["value"])
    return (machine.usable_bytes - machine.context_bytes[2]) / (1 + share)


__all__ = ["Outcomes", "batches_at", "host_short", "too_large"]
