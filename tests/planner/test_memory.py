"""A workload replayed: peaks by phase, gradients that accumulate, workspaces, limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.call import Call, TensorSpec
from planner.memory import Scratch, Timeline, Workspace, replay
from planner.workload import ALLOCATE, CALL, CATEGORIES, FREE, GRADIENT, PHASE, PHASES, Events, Parameter, Workload

MIB = 1 << 20
BLOCKS = {"weights": 100, "activations": 300, "gradients": 100, "optimizer": 200, "temporary": 50}  # MiB
NONE = Scratch((), lambda _: ())


def _events(*pairs: tuple[int, int]) -> Events:
    codes, values = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    return Events(codes, values, np.zeros_like(codes))


def _workload() -> Workload:
    """One parameter: activations live through the forward, a gradient is born in backward, a state in step one."""
    weights, activations, gradient, state, temporary = range(5)
    tensor = TensorSpec("f32", (1,))
    return Workload(
        micro_batch=1,
        calls=(Call("mm.default", (tensor, tensor), (), (tensor,)),),
        segments={
            "load": _events((ALLOCATE, weights)),
            "micro_step": _events(
                (PHASE, PHASES.index("forward")), (ALLOCATE, activations), (CALL, 0), (PHASE, PHASES.index("backward")),
                (CALL, 0), (ALLOCATE, gradient), (FREE, activations), (GRADIENT, 0),
            ),
            "optimizer_first": _events(
                (PHASE, PHASES.index("optimizer")), (ALLOCATE, state), (ALLOCATE, temporary), (FREE, temporary)
            ),
            "optimizer": _events((PHASE, PHASES.index("optimizer")), (ALLOCATE, temporary), (FREE, temporary)),
        },
        block_bytes=np.array([size * MIB for size in BLOCKS.values()], dtype=np.int64),
        block_categories=np.array([CATEGORIES.index(name) for name in BLOCKS], dtype=np.int64),
        parameters=(Parameter("weight", "f32", (1,), True, weights, gradient),),
        samples_to_tokens=1,
        family="none",
        task="none",
    )  # fmt: skip


def _mebibytes(seen: Timeline) -> dict[str, int]:
    return {phase: size // MIB for phase, size in seen.peaks.items()}


def test_each_phase_has_its_peak_and_the_largest_is_named() -> None:
    seen = replay(_workload(), NONE)
    assert _mebibytes(seen) == {"load": 100, "forward": 600, "backward": 700, "optimizer": 450}
    assert seen.peak_phase == "backward"
    assert sum(seen.by_category.values()) == seen.peak_allocated_bytes == 700 * MIB


def test_accumulated_gradients_stay_while_new_ones_are_born() -> None:
    seen = replay(_workload(), NONE, accumulation=2)
    assert _mebibytes(seen)["forward"] == 700
    assert _mebibytes(seen)["backward"] == 800


def test_a_workspace_is_taken_at_the_first_product_of_its_thread() -> None:
    workspace = Workspace(32 * MIB, frozenset({"mm.default"}), backward=True)
    seen = replay(_workload(), Scratch((workspace,), lambda _: ()))
    assert _mebibytes(seen)["load"] == 100
    assert _mebibytes(seen)["backward"] == 732


def test_groups_of_scratch_follow_one_another() -> None:
    seen = replay(_workload(), Scratch((), lambda _: ((200 * MIB, 100 * MIB), (250 * MIB,))))
    assert _mebibytes(seen)["forward"] == 600 + 300


def test_a_limit_ends_the_replay() -> None:
    peak = replay(_workload(), NONE).peak_reserved_bytes
    assert not replay(_workload(), NONE, limit_bytes=peak).out_of_memory
    assert replay(_workload(), NONE, limit_bytes=peak // 2).out_of_memory


def test_an_evaluation_has_its_own_peak_and_is_named_when_it_is_the_largest() -> None:
    """States stay, gradients are gone; 300 MiB of activations and 600 MiB of logits come on top of 300."""
    base = _workload()
    logits = len(base.block_bytes)
    evaluated = replace(
        base,
        segments={
            **base.segments,
            "evaluation": _events(
                (PHASE, PHASES.index("evaluation")), (ALLOCATE, 1), (ALLOCATE, logits), (FREE, 1), (FREE, logits)
            ),
        },
        block_bytes=np.append(base.block_bytes, 600 * MIB),
        block_categories=np.append(base.block_categories, CATEGORIES.index("logits")),
    )
    seen = replay(evaluated, NONE)
    assert _mebibytes(seen)["evaluation"] == seen.peak_allocated_bytes // MIB == 1200
    assert seen.peak_phase == "evaluation"
    assert seen.by_category["logits"] == 600 * MIB
    assert replay(evaluated, NONE, evaluation=False) == replay(base, NONE)
