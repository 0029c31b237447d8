"""Compiled kernels: the times that a profiled step gives to the fused kernels of its trace.

A fused kernel exists only in the model that it was made for, so it is timed there: torch's profiler lists the kernels
of one compiled step in order, the trace knows what each fused one moves, and the two lists are laid side by side.

`python -m calibrate.compiled RUNS.jsonl FOLDER` prints a measurement line for every fused kernel of the runs, whose
profiles are FOLDER/NAME.kernels.json.gz: lists of [kernel, start in us, length in us].
`python -m calibrate.compiled LINES.jsonl PROFILE.json.gz` adds such lines to a profile.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from calibrate.fit import LARGEST_CURVE, read_lines, samples_of, thinned, tuned
from catalog import profile as profiles
from catalog.errors import RigplanError
from catalog.profile import Profile
from catalog.store import accelerator as catalog_accelerator
from planner import machine as machines
from planner.cache import Workloads
from planner.call import Call, from_json, to_json
from planner.curve import residual_of
from planner.evaluate import knobs_of
from planner.operators import Operator, describe
from planner.roofline import rates
from planner.spec import Spec
from planner.strategy import choices
from planner.workload import Workload

# How Inductor's kernels are named, and a library's: what of a name says which kind of call it was launched by.
TRITON = {"triton_poi": "pointwise", "triton_per": "persistent", "triton_red": "looped"}
LIBRARIES = {"sdpa": "attention", "fmha": "attention", "flash": "attention", "nvjet": "matmul", "gemm": "matmul"}
FARTHEST = 3.2  # times longer or shorter than the model says
FEWEST = 50  # kernels that make a curve
ALIKE = {"scatter": "pointwise"}  # variants that a kernel's name does not tell apart

Kernel = Sequence[Any]  # name, start in us, length in us


def matched(workload: Workload, kernels: Sequence[Kernel]) -> list[tuple[Call, float]]:
    """(call, seconds) of the fused kernels of a compiled step that stand at the same place in both lists."""
    calls = [workload.calls[index] for index in workload.calls_in("micro_step")]
    ours = [(call, _word(describe(call))) for call in calls]
    theirs = [(kernel, _spoken(str(kernel[0]))) for kernel in kernels]
    left = [item for item in ours if item[1]]
    right = [item for item in theirs if item[1]]
    blocks = SequenceMatcher(None, [word for _, word in left], [word for _, word in right], autojunk=False)
    pairs = (
        (left[block.a + step], right[block.b + step])
        for block in blocks.get_matching_blocks()
        for step in range(block.size)
    )
    return [(call, float(kernel[2]) / 1e6) for (call, _), (kernel, _) in pairs if describe(call).kind == "fused"]


def _word(operator: Operator) -> str:
    if operator.kind == "fused":
        return ALIKE.get(operator.variant, operator.variant)
    return operator.kind if operator.kind in LIBRARIES.values() else ""


def _spoken(name: str) -> str:
    for table in (TRITON, LIBRARIES):
        for part, word in table.items():
            if part in name:
                return "" if "reduce" in name and table is LIBRARIES else word
    return ""


def lines(records: Iterable[Mapping[str, Any]], folder: Path) -> Iterator[dict[str, Any]]:
    """A measurement line for each fused kernel of the compiled runs that have a profile in the folder."""
    for record in records:
        path = folder / f"{record['name']}.kernels.json.gz"
        if not record["strategy"]["compile"] or not path.is_file():
            continue
        spec = Spec.load(record["spec"])
        strategy, choice = next(iter(choices(spec)))
        machine = machines.resolve(choice)
        workload = Workloads(spec.model, spec.data).at(knobs_of(strategy, machine), record["micro_batch"])
        yield from lines_of(workload, json.loads(gzip.decompress(path.read_bytes())), machine.accelerator.name)


def lines_of(workload: Workload, kernels: Sequence[Kernel], device: str) -> Iterator[dict[str, Any]]:
    """One run's lines: each call once, with the median of its times."""
    times: dict[Call, list[float]] = defaultdict(list)
    for call, seconds in matched(workload, kernels):
        times[call].append(seconds)
    for call, found in times.items():
        yield {"call": to_json(call), "seconds": median(found), "device": device}


def with_lines(profile: Profile, measured: Sequence[Mapping[str, Any]]) -> Profile:
    """The profile with a curve through these fused kernels. A time far from any sound model belongs to another kernel,
    beside which the call was laid by mistake: it is left out."""
    times: dict[Operator, list[float]] = defaultdict(list)
    for line in measured:
        times[describe(from_json(line["call"]))].append(float(line["seconds"]))
    at = rates(catalog_accelerator(profile.accelerator))
    pairs = [(operator, median(found)) for operator, found in times.items()]
    raw = samples_of(profile.accelerator, "fused", "any", "measured", pairs, measured=True)
    _, residual = residual_of(raw, at)
    kept = raw.take(np.flatnonzero(np.abs(residual) < np.log(FARTHEST)))
    if len(kept) < FEWEST:
        raise RigplanError(f"found {len(kept)} times of fused kernels; wanted {FEWEST} or more for a curve")
    samples = tuned(thinned(kept, LARGEST_CURVE), at)
    return replace(profile, curves={**profile.curves, samples.key: (samples,)})


def main(arguments: Sequence[str]) -> int:
    try:
        first, second = map(Path, arguments)
        if second.is_dir():
            for line in lines(read_lines(first), second):
                print(json.dumps(line))
        else:
            profiles.save(with_lines(profiles.load(second), read_lines(first)), second)
    except ValueError:
        print("usage: python -m calibrate.compiled RUNS.jsonl FOLDER | LINES.jsonl PROFILE.json.gz", file=sys.stderr)
        return 2
    except RigplanError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
