"""Time many calls within a given time: every kind coarsely first, then finer, into a file that a later run continues.

The file is JSON lines: one header with the device's facts, then one line a measurement, a factor or a call left out.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from calibrate import kernels
from calibrate.replay import NotReplayable, Rotation, call_bytes, result_bytes, rotation_sets, runnable
from catalog.errors import RigplanError
from planner.call import Call, to_json
from planner.cost import rounds
from planner.operators import describe

SHARE_OF_MEMORY = 0.8  # of what is free, that the arguments and results of one call may take
WORKSPACE_SHARE = 0.5  # of arguments and results, kept for what a library allocates beside them


class Timing(Protocol):
    """What a measurement returns, in seconds: the median and the quartiles of `runs` runs."""

    @property
    def median_s(self) -> float: ...
    @property
    def low_s(self) -> float: ...
    @property
    def high_s(self) -> float: ...


Measure = Callable[[Rotation], Timing]


@dataclass(frozen=True, slots=True)
class Job:
    """One call to be timed, with fp32 products rounded to tf32 or not."""

    call: Call
    tf32: bool = False

    @property
    def key(self) -> str:
        return f"{self.call} tf32={self.tf32}"


@dataclass(slots=True)
class Summary:
    """What a sweep did. `left` counts the calls that time did not allow, `skipped` says why calls cannot be timed."""

    measured: int = 0
    known: int = 0
    left: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    interrupted: bool = False


def jobs_of(calls: Iterable[Call]) -> list[Job]:
    """Each call once; twice where tf32 makes a difference."""
    jobs = []
    for call in dict.fromkeys(calls):
        jobs.append(Job(call))
        if rounds(call):
            jobs.append(Job(call, tf32=True))
    return jobs


def job_of(call: Call, tf32: bool) -> Job:
    """The job of one call of a trace; TF32 is asked for only where it changes what runs."""
    return Job(call, tf32 and rounds(call))


def all_jobs() -> list[Job]:
    """The calls of every kind, so ordered that any first part of the list covers all kinds and sizes evenly."""
    return spread(jobs_of(call for generate in kernels.KERNELS.values() for call in generate()))


def spread(jobs: Sequence[Job]) -> list[Job]:
    """Group by operator and dtype, take each group's sizes ends first and then halfway between, and interleave."""
    groups: dict[tuple[str, str, str, bool], list[Job]] = defaultdict(list)
    for job in jobs:
        operator = describe(job.call)
        groups[operator.kind, job.call.name, operator.dtype, job.tf32].append(job)
    ranked: list[tuple[float, Job]] = []
    for group in groups.values():
        group.sort(key=_work)
        order = list(halving(len(group)))
        ranked += [(rank / len(group), group[place]) for rank, place in enumerate(order)]
    ranked.sort(key=lambda pair: pair[0])
    return [job for _, job in ranked]


def halving(count: int) -> Iterator[int]:
    """0 to count - 1 in the order: the middle, the ends, the quarters, the eighths..."""
    seen: set[int] = set()
    parts = 2
    while len(seen) < count:
        steps = range(1, parts, 2) if parts > 2 else (1, 2, 0)
        for step in steps:
            place = min(count - 1, step * count // parts)
            if place not in seen:
                seen.add(place)
                yield place
        parts *= 2


def known_keys(path: Path) -> set[str]:
    """The keys of the jobs that a file already holds; a last line cut short by an interruption is ignored."""
    return {_key(line) for line in read_lines(path) if "call" in line or "skipped" in line}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a sweep's file; none when there is no file."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def append(path: Path, line: dict[str, Any]) -> None:
    """Add one line, on a line of its own even after one that was cut short."""
    with path.open("a+b") as file:
        if file.tell() > 0:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def run(
    jobs: Sequence[Job],
    path: Path,
    measure: Measure,
    *,
    device: str = "cuda",
    minutes: float = float("inf"),
    report: Callable[[Job, Summary], None] = lambda job, summary: None,
) -> Summary:
    """Time `jobs` in order until `minutes` are over, appending to `path` what it does not hold yet.

    Ctrl-C ends it and keeps what there is. Raises RigplanError when the device stops answering.
    """
    deadline = time.monotonic() + 60 * minutes
    known = known_keys(path)
    todo = [job for job in jobs if job.key not in known]
    summary = Summary(known=len(jobs) - len(todo))
    tf32_before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        for done, job in enumerate(todo):
            if time.monotonic() > deadline:
                summary.left = len(todo) - done
                break
            line = _measured(job, measure, device)
            if "reason" in line:
                summary.skipped.append((str(job.call), line["reason"]))
            else:
                summary.measured += 1
            append(path, line)
            report(job, summary)
            if "reason" in line and not _alive(device):
                raise RigplanError(
                    f"the GPU stopped answering at {job.call.name} ({line['reason']}); {path} keeps what was measured: "
                    "start again with --resume, which leaves this call out"
                )
    except KeyboardInterrupt:
        summary.interrupted = True
        summary.left = len(todo) - summary.measured - len(summary.skipped)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32_before
    return summary


def _measured(job: Job, measure: Measure, device: str) -> dict[str, Any]:
    """The line about one job: its seconds, or the reason why it has none."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = job.tf32
    try:
        timing = measure(runnable(job.call, device, sets=_sets(job.call, device)))
    except NotReplayable as error:
        return _left_out(job, str(error))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return _left_out(job, "out of memory")
    except RuntimeError as error:
        return _left_out(job, (str(error).strip().splitlines() or ["failed"])[0])
    return {
        "call": to_json(job.call),
        "seconds": timing.median_s,
        "low_seconds": timing.low_s,
        "high_seconds": timing.high_s,
        "tf32": job.tf32,
    }


def _sets(call: Call, device: str) -> int:
    """How many sets of arguments to rotate over; NotReplayable when not even one fits."""
    if not device.startswith("cuda"):
        return 1
    free_bytes, _ = torch.cuda.mem_get_info()
    free_bytes += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    results = result_bytes(call)
    budget = int(SHARE_OF_MEMORY * free_bytes) - results
    needed = call_bytes(call) + int(WORKSPACE_SHARE * (call_bytes(call) + results))
    if needed > budget:
        raise NotReplayable(f"needs {needed / 2**30:.1f} GiB and {max(budget, 0) / 2**30:.1f} GiB are free")
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    return rotation_sets(call, l2_bytes, int(budget * (1 - WORKSPACE_SHARE)))


def _alive(device: str) -> bool:
    """A failed launch may take the whole CUDA context with it; then nothing can be measured any more."""
    try:
        if device.startswith("cuda"):
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _left_out(job: Job, reason: str) -> dict[str, Any]:
    return {"skipped": to_json(job.call), "tf32": job.tf32, "reason": reason}


def _key(line: dict[str, Any]) -> str:
    """The key of a file's line, compared as text: JSON does not tell tuples from lists."""
    from planner.call import from_json

    return Job(from_json(line.get("call") or line["skipped"]), line["tf32"]).key


def _work(job: Job) -> float:
    """A size to order by: bytes, and FLOP at the hundred a byte that GPUs have."""
    operator = describe(job.call)
    return operator.bytes_moved + operator.flop / 100
