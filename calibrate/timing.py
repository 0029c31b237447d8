"""The one routine that times device work: `measure`. What it reads lies behind that work, on the device's own clock.

A device works asynchronously: a host clock read after a launch shows how long the launch took. So a `Queue` places
marks among the work, and the seconds between them are read only once the device has passed them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Work = Callable[[], object]

MINIMUM_SECONDS = 0.05  # of timed device work
WARM_UP_SECONDS = 0.02
MAXIMUM_SECONDS = 1.0  # of timed device work, for work that takes long
SAMPLE_SECONDS = 3e-4  # of one sample: a mark is good to a microsecond
LAUNCH_SECONDS = 1e-4  # work that seems shorter than this may only show the host's launches
SHORT_CALLS = 96  # in a sample of such work
LEAST_SAMPLES, LEAST_SLOW_SAMPLES = 7, 3
BATCH = 8  # samples between two waits for the device
MOST_LAUNCHES = 512  # queued behind a hold: a CUDA stream takes about a thousand before the host must wait
MOST_HOLD_SECONDS = 0.05  # worth waiting for; longer work hides the launches by itself
CLOCK_SECONDS = 1e-7  # what no clock here tells apart
HOLD_SECONDS = 1e-3  # in which the host gets ahead of the device by a batch of graphs
L2_MULTIPLE = 2  # written between two runs of work that does not rotate its inputs


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one run: median and quartiles of `runs` samples."""

    median_s: float
    low_s: float
    high_s: float
    runs: int


class Queue(Protocol):
    """A device that works through what it is given, in order, perhaps later."""

    def wait(self) -> None:
        """Return when all work given so far is done."""

    def mark(self) -> Any:
        """A point in the device's time after the work given so far."""

    def seconds(self, start: Any, end: Any) -> float:
        """Device seconds between two marks; asked only after `wait`."""

    def hold(self, seconds: float) -> None:
        """Keep the device busy, so that the host can give it work ahead."""

    def flush(self) -> None:
        """Drop what the device's caches hold."""

    def repeated(self, work: Work, calls: int) -> tuple[Work, int]:
        """Work that runs `work` so many times, in as few launches as can be, and how many launches that takes."""


def measure(
    work: Work,
    *,
    minimum_seconds: float = MINIMUM_SECONDS,
    warm_up_seconds: float = WARM_UP_SECONDS,
    queue: Queue | None = None,
) -> Timing:
    """Device seconds of one run of `work`.

    Work that rotates over copies of its inputs says so by `work.sets`, and then runs back to back; any other runs once
    a sample, with the caches flushed before. The median is of at least seven samples (three of slow work).
    """
    queue = queue or queue_here()
    once = _warm_up(work, warm_up_seconds, queue)
    sets: int | None = getattr(work, "sets", None)
    calls = 1 if sets is None else _calls(once, sets)
    sample, launches = queue.repeated(work, calls)
    affordable = math.ceil(MAXIMUM_SECONDS / LEAST_SLOW_SAMPLES / (calls * once))
    batch = max(1, min(BATCH, MOST_LAUNCHES // launches, affordable))
    hold = HOLD_SECONDS if launches == 1 else once * launches * batch
    taken: list[float] = []
    while not _enough(taken, calls, minimum_seconds):
        taken += [seconds / calls for seconds in _batch(sample, batch, hold, sets is None, queue)]
    low, median, high = statistics.quantiles(taken, n=4, method="inclusive")
    return Timing(median, low, high, len(taken))


def _warm_up(work: Work, least_seconds: float, queue: Queue) -> float:
    """Run until the time is over, waiting each time; the seconds of the last run as they came, launch and all."""
    queue.wait()
    began = time.perf_counter()
    runs = 0
    while True:
        start = queue.mark()
        work()
        end = queue.mark()
        queue.wait()
        runs += 1
        if time.perf_counter() - began >= least_seconds and runs > 1:
            return max(queue.seconds(start, end), CLOCK_SECONDS)


def _calls(once: float, sets: int) -> int:
    """Runs in a sample: enough for the clock, and every set of inputs equally often."""
    wanted = SHORT_CALLS if once < LAUNCH_SECONDS else math.ceil(SAMPLE_SECONDS / once)
    return sets * math.ceil(wanted / sets)


def _batch(sample: Work, count: int, hold_seconds: float, flush: bool, queue: Queue) -> list[float]:
    """The device's seconds of `count` samples, all queued before the first is done."""
    if hold_seconds <= MOST_HOLD_SECONDS:
        queue.hold(hold_seconds)
    marks = []
    for _ in range(count):
        if flush:
            queue.flush()
        start = queue.mark()
        sample()
        marks.append((start, queue.mark()))
    queue.wait()
    return [queue.seconds(start, end) for start, end in marks]


def _enough(taken: list[float], calls: int, minimum_seconds: float) -> bool:
    total = sum(taken) * calls
    if total >= MAXIMUM_SECONDS:
        return len(taken) >= LEAST_SLOW_SAMPLES
    return total >= minimum_seconds and len(taken) >= LEAST_SAMPLES


@functools.cache  # a stream of its own has library workspaces of its own
def queue_here() -> Queue:
    """The GPU where torch has one, else the host, which is done when it returns."""
    return CudaQueue() if torch.cuda.is_available() else HostQueue()


class HostQueue:
    """The host as its own device: work is done when the call returns."""

    def wait(self) -> None:
        """Nothing to wait for."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def hold(self, seconds: float) -> None:
        """Nothing can be queued ahead."""

    def flush(self) -> None:
        """The host's caches are left as they are: its times are for tests, not for profiles."""

    def repeated(self, work: Work, calls: int) -> tuple[Work, int]:
        return _loop(work, calls), calls


class CudaQueue:
    """A CUDA stream: marks are events; repeated work is a CUDA graph where it can be captured."""

    def __init__(self) -> None:
        self._side = torch.cuda.Stream()
        properties = torch.cuda.get_device_properties()
        self._hz = 1e3 * getattr(properties, "clock_rate", 2_000_000)
        self._flushed = torch.empty(L2_MULTIPLE * properties.L2_cache_size, dtype=torch.int8, device="cuda")

    def wait(self) -> None:
        torch.cuda.synchronize()

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(start.elapsed_time(end)) / 1000

    def hold(self, seconds: float) -> None:
        torch.cuda._sleep(int(seconds * self._hz))

    def flush(self) -> None:
        self._flushed.zero_()

    def repeated(self, work: Work, calls: int) -> tuple[Work, int]:
        """A graph's replay; single launches where the work waits for the device or refuses capture."""
        graph = self._captured(work, calls) if self._never_waits(work) else None
        return (graph.replay, 1) if graph is not None else (_loop(work, calls), calls)

    def _never_waits(self, work: Work) -> bool:
        """Whether the work runs without asking the device for a value: such work cannot be captured."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls the mode a prototype
            torch.cuda.set_sync_debug_mode("error")
            try:
                with torch.cuda.stream(self._side):  # where the libraries' workspaces of the capture are to be born
                    work()
            except RuntimeError as error:
                if "synchronizing" not in str(error):
                    raise
                return False
            finally:
                torch.cuda.set_sync_debug_mode(before)
        torch.cuda.synchronize()
        return True

    def _captured(self, work: Work, calls: int) -> torch.cuda.CUDAGraph | None:
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.stream(self._side):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    _loop(work, calls)()
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            with contextlib.suppress(RuntimeError, AttributeError):  # else later allocations go to the graph's pool
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            torch.cuda.synchronize()
            return None
        graph.replay()
        torch.cuda.synchronize()
        return graph


def _loop(work: Work, calls: int) -> Work:
    def run() -> None:
        for _ in range(calls):
            work()

    return run
