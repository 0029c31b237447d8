"""Offload: what leaves the GPU, what moves when, how long the host takes, and real offloaded steps on one H200."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from catalog.units import GIB
from planner import machine as machines
from planner.collectives import Mesh, traffic
from planner.communication import call_seconds
from planner.cost import Pricing
from planner.memory import Scratch, Timeline, replay
from planner.outcome import host_short
from planner.passes import offload, zero
from planner.search import estimate
from planner.step import StepTime, step_time
from planner.strategy import HardwareChoice, Strategy
from planner.workload import Workload
from tests.planner.sharded_model import traced

RUNS = Path(__file__).parents[1] / "measured" / "h200_offload.jsonl"


def played(workload: Workload, accumulation: int = 1) -> Timeline:
    return replay(workload, Scratch((), lambda call: ()), accumulation=accumulation)


@pytest.fixture(scope="module")
def low() -> Workload:
    return traced(precision="bf16", width=512, inner=1024, words=2000, depth=3)


@pytest.fixture(scope="module")
def sharded() -> Workload:
    return traced(Mesh("fsdp", 2), width=512, inner=1024, words=2000, depth=3)


def test_a_rank_of_zero_keeps_weights_on_the_gpu_and_18_bytes_a_parameter_of_its_share_on_the_host(
    low: Workload,
) -> None:
    moved = offload.PASSES["zero2"](low, 4, "optimizer")
    # fp32 weights, gradients, momentum and variance, and the weights in 16 bits that go back
    assert moved.host_bytes == pytest.approx(low.parameter_count * 18 / 4, rel=0.001)
    assert played(moved).peaks["load"] == played(low).peaks["load"]
    on_gpu, off_it = played(zero.apply(low, 4, 2)), played(moved)
    assert on_gpu.peaks["optimizer"] - off_it.peaks["optimizer"] > low.parameter_count * 12 / 4


def test_gradients_leave_in_fp32_as_they_are_reduced_and_weights_come_back_in_the_low_dtype(low: Workload) -> None:
    moved = offload.PASSES["zero1"](low, 4, "optimizer")
    micro, step = traffic(moved, "micro_step"), traffic(moved, "optimizer")
    assert [kind for kind, _, _ in micro] == ["reduce_scatter", "device_to_host"]
    assert micro[1][2] == pytest.approx(low.parameter_count * 4 / 4, rel=0.001)
    assert [kind for kind, _, _ in step] == ["host_step", "host_to_device", "all_gather"]
    assert step[1][2] == pytest.approx(low.parameter_count * 2 / 4, rel=0.001)


@pytest.mark.parametrize("way", ["zero1", "zero2"])
def test_one_gpu_may_offload_too(low: Workload, way: str) -> None:
    moved = offload.PASSES[way](low, 1, "optimizer")
    assert moved.host_bytes == pytest.approx(low.parameter_count * 18, rel=0.001)
    assert "all_gather" not in {kind for kind, _, _ in traffic(moved, "optimizer")}
    freed = played(moved).peaks["optimizer"]
    assert freed < 1.1 * low.bytes_of("weights")  # gradients went as they came


def test_fsdp_keeps_nothing_of_its_own_on_the_gpu_between_steps(sharded: Workload) -> None:
    moved = offload.PASSES["fsdp"](sharded, 2, "all")
    assert moved.host_bytes == pytest.approx(sharded.parameter_count * 16 / 2, rel=0.01)
    assert played(moved).peaks["load"] == 0
    assert played(moved, accumulation=2).peak_allocated_bytes <= played(sharded, accumulation=2).peak_allocated_bytes


def test_a_shard_comes_over_the_hosts_link_before_each_gather_and_its_gradient_goes_after_each_reduction(
    sharded: Workload,
) -> None:
    before = [kind for kind, _, _ in traffic(sharded, "micro_step")]
    after = [kind for kind, _, _ in traffic(offload.PASSES["fsdp"](sharded, 2, "all"), "micro_step")]
    assert after.count("host_to_device") == before.count("all_gather") == after.count("all_gather")
    assert after.count("device_to_host") == before.count("reduce_scatter")
    for at, kind in enumerate(after):
        if kind == "all_gather":
            assert after[at - 1] == "host_to_device"


def test_stage_three_offloads_the_optimizer_alone_or_the_weights_too() -> None:
    low = traced(Mesh("fsdp", 2), precision="bf16", width=512, inner=1024, words=2000, depth=3)
    some, all_of_it = (offload.PASSES["zero3"](low, 2, what) for what in ("optimizer", "all"))
    assert all_of_it.host_bytes - some.host_bytes == low.bytes_of("weights")
    assert played(some).peaks["load"] - played(all_of_it).peaks["load"] >= low.bytes_of("weights")


def timed(workload: Workload, strategy: Strategy, choice: HardwareChoice) -> StepTime:
    machine = machines.resolve(choice)
    pricing: Pricing = machine.pricing(tf32=False)
    return step_time(workload, pricing, transfer=call_seconds(workload, strategy, machine))


def test_the_host_of_a_node_steps_for_all_its_gpus(low: Workload) -> None:
    strategy = Strategy(sharding="zero2", offload="optimizer", max_grad_norm=None)
    alone = timed(offload.PASSES["zero2"](low, 1, "optimizer"), strategy, HardwareChoice("h200-sxm"))
    eight = timed(offload.PASSES["zero2"](low, 8, "optimizer"), strategy, HardwareChoice("h200-sxm", 8))
    assert alone.host_step_seconds == pytest.approx(low.parameter_count / 1e9 * 0.5, rel=0.01)  # overheads.yaml
    assert eight.host_step_seconds == pytest.approx(alone.host_step_seconds, rel=0.01)
    assert eight.exposed_communication_seconds <= eight.communication_seconds


def test_more_host_memory_than_there_is_is_refused_with_both_figures() -> None:
    machine = machines.resolve(HardwareChoice("h200-sxm", host_memory_bytes=64 * GIB))
    assert host_short(64 * GIB, machine) is None
    told = host_short(65 * GIB, machine)
    assert told is not None
    assert told.startswith("offload needs 65.00 GiB of host memory a node, and there are 64.00 GiB")


@pytest.mark.slow
@pytest.mark.parametrize("line", RUNS.read_text(encoding="utf-8").splitlines())
def test_real_offloaded_steps_are_predicted(line: str) -> None:
    run = json.loads(line)
    found = estimate(run["spec"])
    assert found.step is not None
    assert found.memory.peak_allocated_bytes == pytest.approx(run["peak_allocated_bytes"], rel=0.001)
    assert found.memory.peak_reserved_bytes == pytest.approx(run["peak_reserved_bytes"], rel=0.005)
    together = found.step.forward_seconds + found.step.backward_seconds
    assert together == pytest.approx(run["forward_backward_seconds"], rel=0.03)
    assert found.step.optimizer_seconds == pytest.approx(run["optimizer_seconds"], rel=0.10)
    measured = run["forward_backward_seconds"] + run["optimizer_seconds"]
    assert found.step.low_seconds < measured < found.step.high_seconds
