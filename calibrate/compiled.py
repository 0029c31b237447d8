"""Compiled kernels: the times that a profiled step gives to the fused kernels and the attention of its trace.

A fused kernel exists only in the model that it was made for, so it is timed there: torch's profiler lists the kernels
of one compiled step in order, the trace knows what each fused one moves, and the two lists are laid side by side.
Attention is timed there too: a compiled causal model gives it a mask, which no eager one does.

`python -m calibrate.compiled RUNS.jsonl FOLDER` prints a measurement line for each such call of the runs, whose
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
from catalog.profile import Profile, Samples
from catalog.store import accelerator as catalog_accelerator
from planner import machine as machines
from planner.cache import Workloads
from planner.call import Call, from_json, to_json
from planner.curve import residual_of
from planner.evaluate import knobs_of
from planner.machine import Machine
from planner.operators import Operator, describe
from planner.roofline import rates
from planner.spec import Spec
from planner.step import DENSE_KINDS, sustained_class, sustained_ratio
from planner.strategy import choices
from planner.workload import Workload

# How Inductor's kernels are named, and a library's: what of a name says which kind of call it was launched by.
TRITON = {"triton_poi": "pointwise", "triton_per": "persistent", "triton_red": "looped"}
LIBRARIES = {"sdpa": "attention", "fmha": "attention", "flash": "attention", "nvjet": "matmul", "gemm": "matmul"}
BACKWARD = ("bprop", "bwd", "backward")
# Kernels that are part of attention's backward: the one before that which is named after it, and the one after.
BEFORE, AFTER = "compute_dot_do_o", "convert_dq"
FARTHEST = 3.2  # times longer or shorter than the model says
FEWEST = 50  # kernels that make a curve
ALIKE = {"scatter": "pointwise"}  # variants that a kernel's name does not tell apart

Kernel = Sequence[Any]  # name, start in us, length in us


def matched(workload: Workload, kernels: Sequence[Kernel]) -> list[tuple[Call, float]]:
    """(call, seconds) of a compiled step's fused kernels and attention that stand at the same place in both lists."""
    calls = [workload.calls[index] for index in workload.calls_in("micro_step")]
    ours = [(call, _word(call)) for call in calls]
    theirs = [(index, _spoken(str(kernel[0]))) for index, kernel in enumerate(kernels)]
    left = [item for item in ours if item[1]]
    right = [item for item in theirs if item[1]]
    blocks = SequenceMatcher(None, [word for _, word in left], [word for _, word in right], autojunk=False)
    pairs = (
        (left[block.a + step], right[block.b + step])
        for block in blocks.get_matching_blocks()
        for step in range(block.size)
    )
    return [(call, _seconds(kernels, index)) for (call, word), (index, _) in pairs if word != "matmul"]


def _seconds(kernels: Sequence[Kernel], index: int) -> float:
    """What a call took: its kernel and those beside it that are part of it."""
    before, after = kernels[index - 1 : index], kernels[index + 1 : index + 2]
    parts = [
        *(kernel for kernel in before if BEFORE in kernel[0]),
        kernels[index],
        *(kernel for kernel in after if AFTER in kernel[0]),
    ]
    return sum(float(part[2]) for part in parts) / 1e6


def _word(call: Call) -> str:
    operator = describe(call)
    if operator.kind == "fused":
        return ALIKE.get(operator.variant, operator.variant)
    if operator.kind == "attention":
        return _directed(operator.kind, call.name)
    return operator.kind if operator.kind in LIBRARIES.values() else ""


def _spoken(name: str) -> str:
    for table in (TRITON, LIBRARIES):
        for part, word in table.items():
            if part in name:
                return "" if "reduce" in name and table is LIBRARIES else _directed(word, name)
    return ""


def _directed(word: str, name: str) -> str:
    """Attention's backward kernel is another one than its forward."""
    return f"{word} backward" if word == "attention" and any(part in name for part in BACKWARD) else word


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
        yield from lines_of(workload, json.loads(gzip.decompress(path.read_bytes())), machine)


def lines_of(workload: Workload, kernels: Sequence[Kernel], machine: Machine) -> Iterator[dict[str, Any]]:
    """One run's lines: each call once, with the median of its times. A dense product is slower in a step than timed
    alone, which is what a line says."""
    times: dict[Call, list[float]] = defaultdict(list)
    for call, seconds in matched(workload, kernels):
        times[call].append(seconds)
    for call, found in times.items():
        operator = describe(call)
        alone = median(found) / sustained_ratio(operator, sustained_class(operator), machine.pricing(tf32=False))
        yield {"call": to_json(call), "seconds": float(f"{alone:.5g}"), "device": machine.accelerator.name}


def with_lines(profile: Profile, measured: Sequence[Mapping[str, Any]]) -> Profile:
    """The profile with a curve through these fused kernels, and its curves of attention with these calls among their
    samples. RigplanError when there are too few fused kernels for a curve."""
    times: dict[Operator, list[float]] = defaultdict(list)
    for line in measured:
        times[describe(from_json(line["call"]))].append(float(line["seconds"]))
    pairs = [(operator, median(found)) for operator, found in times.items()]
    fused = _fused_curve(profile.accelerator, [pair for pair in pairs if pair[0].kind == "fused"])
    curves = {**profile.curves, fused.key: (fused,)}
    for key, layers in profile.curves.items():
        mine = [pair for pair in pairs if f"{pair[0].kind}/{pair[0].dtype}" == key and pair[0].kind in DENSE_KINDS]
        if mine:
            curves[key] = (*layers[:-1], _joined(layers[-1], mine))
    return replace(profile, curves=curves)


def _joined(samples: Samples, pairs: Sequence[tuple[Operator, float]]) -> Samples:
    """The samples with these among them, in place of those of the same operators; as smooth as before."""
    new = samples_of(samples.device, samples.kind, samples.dtype, samples.source, pairs, measured=samples.measured)
    known = {(operator.variant, tuple(map(float, operator.shape))) for operator, _ in pairs}
    rows = [
        index
        for index, (variant, shape) in enumerate(zip(samples.variant, samples.shape, strict=True))
        if (samples.variants[variant], tuple(shape)) not in known
    ]
    kept = samples.take(np.asarray(rows, dtype=np.int64))
    variants = tuple(sorted({*samples.variants, *new.variants}))
    place = [np.asarray([variants.index(name) for name in part.variants])[part.variant] for part in (kept, new)]
    return replace(
        samples,
        variants=variants,
        variant=np.concatenate(place),
        shape=np.concatenate([kept.shape, new.shape]),
        work=np.concatenate([kept.work, new.work]),
        seconds=np.concatenate([kept.seconds, new.seconds]),
    )


def _fused_curve(device: str, pairs: Sequence[tuple[Operator, float]]) -> Samples:
    """A time far from any sound model belongs to another kernel, beside which the call was laid by mistake: it is left
    out."""
    at = rates(catalog_accelerator(device))
    raw = samples_of(device, "fused", "any", "measured", pairs, measured=True)
    _, residual = residual_of(raw, at)
    kept = raw.take(np.flatnonzero(np.abs(residual) < np.log(FARTHEST)))
    if len(kept) < FEWEST:
        raise RigplanError(f"found {len(kept)} times of fused kernels; wanted {FEWEST} or more for a curve")
    return tuned(thinned(kept, LARGEST_CURVE), at)


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
