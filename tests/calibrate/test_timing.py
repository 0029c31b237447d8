"""Timing, against a device that can be predicted: it works later than it is told to, in simulated time."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from calibrate.timing import CudaQueue, HostQueue, measure

LAUNCH_S = 10e-6


class LateDevice:
    """Takes work in no time and does it later: the clock of marks is its own, and stands before `wait` is called."""

    def __init__(self, can_repeat: bool) -> None:
        self.done_at_s = 0.0  # when the device will be done with everything given so far
        self.waited_until_s = 0.0
        self.can_repeat = can_repeat
        self.flushes = 0

    def work(self, seconds: float) -> None:
        self.done_at_s += seconds

    def wait(self) -> None:
        self.waited_until_s = self.done_at_s

    def mark(self) -> float:
        return self.done_at_s

    def seconds(self, start: float, end: float) -> float:
        assert end <= self.waited_until_s, "a mark was read before the device had passed it"
        return end - start

    def hold(self, seconds: float) -> None:
        self.done_at_s += seconds

    def flush(self) -> None:
        self.flushes += 1
        self.done_at_s += 1.0

    def repeated(self, work: Any, calls: int) -> tuple[Any, int]:
        def run() -> None:
            for _ in range(calls):
                work()

        return run, 1 if self.can_repeat else calls


class Rotating:
    """Work that tells how many copies of its inputs it goes through."""

    def __init__(self, device: LateDevice, seconds: list[float]) -> None:
        self.device, self.each, self.sets, self.count = device, seconds, len(seconds), 0

    def __call__(self) -> None:
        self.device.work(self.each[self.count % self.sets])
        self.count += 1


@pytest.mark.parametrize("seconds", [2e-6, 3e-4, 0.02, 2.0])
@pytest.mark.parametrize("can_repeat", [True, False])
def test_work_that_ends_after_the_call_has_returned_is_timed_in_full(seconds: float, can_repeat: bool) -> None:
    device = LateDevice(can_repeat)
    timing = measure(Rotating(device, [seconds]), queue=device, warm_up_seconds=0)
    assert timing.median_s == pytest.approx(seconds)
    assert timing.low_s == pytest.approx(seconds)
    assert timing.high_s == pytest.approx(seconds)
    assert timing.runs >= 3


def test_a_timer_that_does_not_wait_sees_only_the_launch() -> None:
    device = LateDevice(can_repeat=True)
    began = time.perf_counter()
    device.work(2.0)
    unsynchronised_s = time.perf_counter() - began
    assert unsynchronised_s < 0.1, "the fake must return at once, or it proves nothing"
    assert measure(lambda: device.work(2.0), queue=device, warm_up_seconds=0).median_s == pytest.approx(2.0)


def test_a_mark_that_is_read_without_waiting_is_caught() -> None:
    device = LateDevice(can_repeat=True)
    device.wait = lambda: None  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="before the device had passed it"):
        measure(Rotating(device, [1e-3]), queue=device, warm_up_seconds=0)


def test_every_set_of_inputs_counts_the_same() -> None:
    device = LateDevice(can_repeat=True)
    timing = measure(Rotating(device, [1e-3, 2e-3, 6e-3]), queue=device, warm_up_seconds=0)
    assert timing.median_s == pytest.approx(3e-3)
    assert device.flushes == 0


def test_inputs_that_do_not_rotate_are_flushed_from_the_cache_outside_of_what_is_timed() -> None:
    device = LateDevice(can_repeat=True)
    timing = measure(lambda: device.work(1e-3), queue=device, warm_up_seconds=0)
    assert timing.median_s == pytest.approx(1e-3)
    assert device.flushes == timing.runs


def test_the_host_is_timed_by_its_own_clock() -> None:
    timing = measure(lambda: time.sleep(0.002), queue=HostQueue(), minimum_seconds=0.01)
    assert 0.002 <= timing.low_s <= timing.median_s <= timing.high_s < 0.1
    assert timing.runs >= 7


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_large_copy_on_a_gpu_takes_as_long_as_its_memory_allows() -> None:
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    timing = measure(lambda: target.copy_(source), queue=CudaQueue())
    bytes_per_s = 2 * source.nbytes / timing.median_s
    assert 2e11 < bytes_per_s < 1e13, "between a laptop's GPU and twice what any GPU has"
    assert timing.high_s / timing.low_s < 1.1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_work_that_asks_the_gpu_for_a_value_is_timed_without_a_graph() -> None:
    flags = torch.rand(1 << 20, device="cuda") > 0.5
    timing = measure(lambda: flags.nonzero(), queue=CudaQueue())
    assert timing.median_s > 1e-6
    assert torch.nn.functional.dropout(torch.ones(8, device="cuda")).shape == (8,)
