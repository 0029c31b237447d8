"""Compiled kernels: a profiled step laid beside its trace, and the curve that comes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calibrate.compiled import lines_of, matched, with_lines
from catalog import profile as profiles
from catalog.errors import RigplanError
from planner.call import Call, TensorSpec, to_json
from planner.cost import Pricing, seconds
from planner.machine import resolve
from planner.operators import describe
from planner.step import sustained_class, sustained_ratio
from planner.strategy import HardwareChoice
from planner.workload import CALL, Events, Workload


def fused(elements: int, *, reduced: int = 1, persistent: bool = False) -> Call:
    spec = TensorSpec("bf16", (elements,))
    facts = (("kept", elements // reduced), ("reduced", reduced), ("persistent", persistent), ("scattered", 0),
             ("instructions", 10 * elements))  # fmt: skip
    return Call("rigplan.fused.default", ((spec,),), facts, (spec,))


PRODUCT = Call(
    "mm.default",
    (TensorSpec("bf16", (64, 64)), TensorSpec("bf16", (64, 64))),
    (),
    (TensorSpec("bf16", (64, 64)),),
)


def workload(*calls: Call) -> Workload:
    """A micro-step that launches each of these calls once."""
    count = len(calls)
    events = Events(
        np.full(count, CALL, dtype=np.int64), np.arange(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    )
    empty = np.zeros(0, dtype=np.int64)
    return Workload(1, calls, {"micro_step": events}, empty, empty, (), 1, "any", "causal-lm")


def test_kernels_are_laid_beside_the_calls_that_launched_them() -> None:
    rows, chain = fused(1 << 20, reduced=1024, persistent=True), fused(1 << 20)
    kernels = [
        ("Memset (Device)", 0.0, 1.0),
        ("triton_per_fused_native_layer_norm_0", 1.0, 5.0),
        ("nvjet_sm90_tst_192x192_64x4", 6.0, 90.0),
        ("triton_poi_fused_gelu_1", 96.0, 7.0),
        ("multi_tensor_apply_kernel", 103.0, 400.0),
    ]
    assert matched(workload(rows, PRODUCT, chain), kernels) == [(rows, 5e-6), (chain, 7e-6)]


def test_a_kernel_of_another_kind_is_not_taken_for_a_call() -> None:
    assert matched(workload(fused(1 << 20)), [("triton_red_fused_sum_0", 0.0, 9.0)]) == []


def test_a_call_launched_twice_has_the_median_of_its_times() -> None:
    call = fused(1 << 20)
    events = workload(call, PRODUCT).segments["micro_step"]
    twice = Events(events.codes[[0, 0]], events.values[[0, 0]], events.views[[0, 0]])
    both = workload(call, PRODUCT)
    asked = Workload(1, both.calls, {"micro_step": twice}, both.block_bytes, both.block_categories, (), 1, "any", "any")
    kernels = [("triton_poi_fused_0", 0.0, 4.0), ("triton_poi_fused_0", 5.0, 8.0)]
    assert [line["seconds"] for line in lines_of(asked, kernels, resolve(HardwareChoice("h200-sxm", 1)))] == [6e-6]


HEADS = TensorSpec("bf16", (8, 8, 2048, 256))
SCORES = TensorSpec("f32", (8, 8, 2048))
MASK = TensorSpec("bf16", (8, 1, 2048, 2048))
FORWARD = Call(
    "rigplan.attention_forward.default", (HEADS, HEADS, HEADS, MASK, 0.0, False, "cudnn"), (), (HEADS, SCORES)
)
BACKWARD = Call(
    "rigplan.attention_backward.default",
    (HEADS, HEADS, HEADS, HEADS, HEADS, SCORES, MASK, 0.0, False, "cudnn", False),
    (),
    (HEADS, HEADS, HEADS, TensorSpec("bf16", (0,))),
)
# Of a compiled Pythia-1B's step on an H200, in us: attention with a mask.
ATTENTION = [
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x256", 0.0, 1084.4),
    ("void cudnn::fusion::compute_dot_do_o_specialized<true, 256>", 2000.0, 68.5),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x256", 2100.0, 3529.1),
    ("void cudnn::fusion::convert_dq_to_16bits<true>", 5700.0, 56.0),
]


def test_attentions_backward_is_all_three_of_its_kernels() -> None:
    found = dict(matched(workload(FORWARD, BACKWARD), ATTENTION))
    assert found[FORWARD] == pytest.approx(1084.4e-6)
    assert found[BACKWARD] == pytest.approx((68.5 + 3529.1 + 56.0) * 1e-6)
    assert matched(workload(BACKWARD), ATTENTION[:1]) == []  # a forward kernel is no backward one


def test_attention_is_predicted_in_a_step_as_it_was_there() -> None:
    machine = resolve(HardwareChoice("h200-sxm", 1))
    found = list(lines_of(workload(FORWARD, BACKWARD), ATTENTION, machine))
    pricing = Pricing(machine.accelerator, with_lines(machine.profile, [*streams(), *found]))
    for call, measured in ((FORWARD, 1084.4e-6), (BACKWARD, 3653.6e-6)):
        operator = describe(call)
        ratio = sustained_ratio(operator, sustained_class(operator), pricing)
        assert ratio * seconds(operator, call, pricing).seconds == pytest.approx(measured, rel=0.06)


def streams() -> list[dict[str, Any]]:
    """Fused kernels of 60 sizes that move their bytes at 4 TB/s."""
    sizes = [int(size) for size in np.geomspace(1 << 16, 1 << 28, 60)]
    return [{"call": to_json(fused(size)), "seconds": 2.4e-6 + size * 4 / 4e12} for size in sizes]


def test_a_curve_follows_the_times_and_leaves_out_what_cannot_be_theirs() -> None:
    profile = profiles.own("h200-sxm")
    assert profile is not None
    wrong = {"call": to_json(fused(1 << 27)), "seconds": 1.0}  # a second for a quarter of a gigabyte
    (samples,) = with_lines(profile, [*streams(), wrong]).curves["fused/any"]
    assert len(samples) == 60
    assert samples.measured
    assert samples.seconds.max() < 1e-3


def test_too_few_times_make_no_curve() -> None:
    profile = profiles.own("h200-sxm")
    assert profile is not None
    with pytest.raises(RigplanError, match="wanted 50"):
        with_lines(profile, [{"call": to_json(fused(1 << 20)), "seconds": 5e-6}])
