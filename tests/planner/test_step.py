"""The step: host and device as two queues, on workloads small enough to work out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from catalog.profile import Factor
from planner import machine as machines
from planner.call import Call, TensorSpec
from planner.collectives import is_collective
from planner.cost import Pricing, seconds
from planner.operators import describe
from planner.passes import ddp
from planner.step import host_work, step_time
from planner.strategy import HardwareChoice
from planner.workload import ALLOCATE, CALL, GRADIENT, PHASE, PHASES, Events, Parameter, Workload

BIG = 1 << 26


def stream(elements: int) -> Call:
    tensor = TensorSpec("f32", (elements,))
    return Call("mul.Tensor", (tensor, 2.0), (), (tensor,))


def events(*steps: tuple[int, int]) -> Events:
    codes, values = (np.array(column, dtype=np.int64) for column in zip(*steps, strict=True))
    return Events(codes, values, np.zeros(len(steps), dtype=np.int64))


def workload(elements: int, kernels: int) -> Workload:
    forward = [(PHASE, PHASES.index("forward")), *[(CALL, 0)] * kernels]
    backward = [(PHASE, PHASES.index("backward")), *[(CALL, 0)] * kernels, (GRADIENT, 0)]
    return Workload(
        micro_batch=1,
        calls=(stream(elements),),
        segments={
            "load": events((ALLOCATE, 0)),
            "micro_step": events(*forward, *backward),
            "optimizer": events((PHASE, PHASES.index("optimizer")), (CALL, 0)),
        },
        block_bytes=np.array([4 * elements, 4 * elements]),
        block_categories=np.array([0, 3]),
        parameters=(Parameter("weight", "f32", (elements,), True, 0, 1),),
        samples_to_tokens=1,
        family="test",
        task="module",
    )


@pytest.fixture
def pricing() -> Pricing:
    return machines.resolve(HardwareChoice("h200-sxm")).pricing(tf32=False)


def kernel_seconds(pricing: Pricing, elements: int) -> float:
    return seconds(describe(stream(elements)), None, pricing).seconds


def test_large_kernels_take_the_time_of_the_device(pricing: Pricing) -> None:
    time = step_time(workload(BIG, 50), pricing)
    assert time.seconds == pytest.approx(101 * kernel_seconds(pricing, BIG), rel=0.02)
    assert time.host_bound_share < 0.02


def test_small_kernels_take_the_time_of_the_host(pricing: Pricing) -> None:
    time = step_time(workload(1000, 500), pricing)
    factor = pricing.profile.factor
    issue = 500 * (factor("host_forward_op_s") + factor("host_backward_op_s"))
    assert time.seconds == pytest.approx(issue, rel=0.05)
    assert time.host_bound_share > 0.7


def test_phases_add_up_to_the_step(pricing: Pricing) -> None:
    time = step_time(workload(BIG, 20), pricing)
    parts = time.forward_seconds + time.backward_seconds + time.optimizer_seconds
    assert parts == pytest.approx(time.seconds, rel=0.02)
    assert time.forward_seconds == pytest.approx(time.backward_seconds, rel=0.05)


def test_accumulation_repeats_the_micro_step_but_not_the_optimizer(pricing: Pricing) -> None:
    one, four = (step_time(workload(BIG, 20), pricing, accumulation=count) for count in (1, 4))
    assert four.forward_seconds == pytest.approx(4 * one.forward_seconds, rel=0.02)
    assert four.optimizer_seconds == pytest.approx(one.optimizer_seconds, rel=0.05)
    assert four.flop == pytest.approx(4 * one.flop) or one.flop == 0


def test_no_step_is_below_its_floor(pricing: Pricing) -> None:
    for kernels in (1, 10, 100):
        time = step_time(workload(BIG, kernels), pricing)
        assert time.seconds >= time.floor_seconds > 0


def test_communication_hides_behind_backward_or_is_exposed(pricing: Pricing) -> None:
    alone = workload(BIG, 20)
    shared = ddp.apply(alone, 8)
    transfer = np.array([0.01 if is_collective(call) else 0.0 for call in shared.calls])
    free = step_time(shared, pricing, transfer=0 * transfer)
    paid = step_time(shared, pricing, transfer=transfer)
    assert paid.communication_seconds == pytest.approx(0.01)
    assert 0 < paid.exposed_communication_seconds <= paid.communication_seconds
    assert paid.seconds == pytest.approx(free.seconds + paid.exposed_communication_seconds, rel=0.01)


def test_a_slower_host_never_makes_a_step_faster(pricing: Pricing) -> None:
    slow = {**pricing.profile.factors, "host_forward_op_s": Factor(1e-3, "s")}
    slower = Pricing(pricing.accelerator, replace(pricing.profile, factors=slow))
    assert step_time(workload(1000, 100), slower).seconds > step_time(workload(1000, 100), pricing).seconds


def test_the_optimizer_costs_the_host_a_unit_a_launch_and_a_parameter() -> None:
    assert host_work(workload(10, 3), "optimizer") == 2
    assert host_work(workload(10, 3), "forward") == 3


def test_many_micro_steps_are_read_off_a_few(pricing: Pricing, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = step_time(workload(1 << 20, 30), pricing, accumulation=40)
    monkeypatch.setattr("planner.step.WALKED", 40)
    walked = step_time(workload(1 << 20, 30), pricing, accumulation=40)
    assert quick.seconds == pytest.approx(walked.seconds, rel=1e-3)
    assert quick.forward_seconds == pytest.approx(walked.forward_seconds, rel=1e-3)
