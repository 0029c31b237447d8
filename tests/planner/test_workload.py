"""Sizes between two traces are read off, and refused where the traces do not line up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cache import TraceKnobs
from planner.spec import Spec
from planner.trace import trace
from planner.workload import NotAffine, Workload, WorkloadFamily


@pytest.fixture(scope="module")
def traces() -> dict[int, Workload]:
    spec = Spec.load({
        "model": {"name": "pythia-14m"}, "data": {"sequence_length": 64},
        "training": {"precision": "bf16-mixed", "micro_batch": 2}, "hardware": {"gpu": "h200-sxm"},
    })  # fmt: skip
    knobs = TraceKnobs("bf16-mixed", "sdpa", "none", "adamw", "foreach", 1.0, (9, 0))
    return {size: trace(spec.model, spec.data, knobs, size) for size in (2, 4, 6)}


def test_a_third_micro_batch_is_read_off_exactly(traces: dict[int, Workload]) -> None:
    derived = WorkloadFamily(traces[2], traces[4]).at(6)
    assert np.array_equal(derived.block_bytes, traces[6].block_bytes)
    for segment in traces[6].segments:
        real = [str(traces[6].calls[index]) for index in traces[6].calls_in(segment)]
        assert [str(derived.calls[index]) for index in derived.calls_in(segment)] == real


def test_traces_with_other_operators_are_not_affine(traces: dict[int, Workload]) -> None:
    other = replace(traces[4], segments={**traces[4].segments, "micro_step": traces[4].segments["optimizer"]})
    with pytest.raises(NotAffine):
        WorkloadFamily(traces[2], other).at(6)
