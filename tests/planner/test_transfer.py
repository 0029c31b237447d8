"""What one device's timings say of another: streams by bandwidth and cycles, products by ceilings and power."""

from __future__ import annotations

import numpy as np
import pytest

from catalog.ceilings import ceiling, throttling
from catalog.profile import prior_factors
from catalog.store import accelerator, accelerators
from planner.call import Call, TensorSpec
from planner.operators import describe
from planner.roofline import Rates, base_seconds, memory_seconds, rates, transferred_seconds

GIB = 1 << 30


def at(name: str) -> Rates:
    return rates(accelerator(name), prior_factors())


def moved(bytes_each: float) -> np.ndarray:
    return np.array([[0.0, bytes_each / 2, bytes_each / 2]])


def test_a_stream_at_full_bandwidth_goes_by_the_bandwidths() -> None:
    h200, v100, work = at("h200-sxm"), at("v100-sxm2-16gb"), moved(GIB)
    full = memory_seconds(np.array([float(GIB)]), h200) + h200.factor("kernel_launch_s")
    there = transferred_seconds(full, work, h200, v100)
    wanted = memory_seconds(np.array([float(GIB)]), v100)
    assert there[0] == pytest.approx(wanted[0], rel=0.01)


def test_a_kernel_far_below_the_bandwidth_goes_by_the_cycles() -> None:
    h200, v100, work = at("h200-sxm"), at("v100-sxm2-16gb"), moved(GIB)
    slow = 20 * memory_seconds(np.array([float(GIB)]), h200)
    there = transferred_seconds(slow, work, h200, v100)
    assert there[0] / slow[0] == pytest.approx(h200.cycles_per_s / v100.cycles_per_s, rel=0.05)


@pytest.mark.parametrize("name", ["v100-sxm2-16gb", "rtx-3090", "l4", "h100-pcie-80gb", "mi300x"])
@pytest.mark.parametrize("slower", [1.0, 1.5, 4.0, 50.0])
def test_nothing_moves_faster_than_the_memory_of_the_device_it_is_brought_to(name: str, slower: float) -> None:
    h200, there, work = at("h200-sxm"), at(name), moved(GIB)
    took = slower * memory_seconds(np.array([float(GIB)]), h200) + h200.factor("kernel_launch_s")
    assert transferred_seconds(took, work, h200, there)[0] >= memory_seconds(np.array([float(GIB)]), there)[0] * 0.999


def test_odd_rows_cost_fast_tensor_cores_much_and_slow_ones_little() -> None:
    def penalty(name: str) -> float:
        work = np.array([[2.0 * 8192**3, 1.0, 1.0]])
        names = np.array(["mm"])
        even, odd = (
            base_seconds(
                "matmul", "bf16", names, np.array([[1.0, 8192, 8192, 8192, 0, 1, 16, 16, align]]), work, at(name)
            )
            for align in (16, 2)
        )
        return float(odd[0] / even[0])

    assert penalty("h200-sxm") > 4  # 139 against 733 TFLOP/s, measured
    assert 1.7 < penalty("a100-sxm4-80gb") < 2.6  # nanoGPT's vocabulary of 50,257 against 50,304
    assert penalty("rtx-3090") == pytest.approx(1.0, abs=0.05)


def test_cards_that_their_power_limit_holds_back_reach_less_of_their_datasheet() -> None:
    a10 = accelerator("a10")  # 125 TFLOP/s on paper, 150 W
    assert ceiling(a10).rate("fp16") == pytest.approx(75e12)
    assert ceiling(accelerator("rtx-a6000")).rate("bf16") == pytest.approx(123.3e12)  # published: kept
    for device in accelerators():
        found = ceiling(device)
        assert all(rate > 0 for rate in found.flop_per_s.values())


def test_long_runs_slow_down_where_the_power_limit_is_near() -> None:
    near, far = throttling(accelerator("h200-sxm"), "bf16"), throttling(accelerator("rtx-3090"), "bf16")
    assert near == pytest.approx(1.0, abs=0.05)
    assert far == 0.0
    assert throttling(accelerator("a100-sxm4-80gb"), "bf16") < 0.5
    assert throttling(accelerator("h100-pcie-80gb"), "bf16") > 1.0
    assert throttling(accelerator("v100-sxm2-16gb"), "fp16") == 1.0  # not known of its class


@pytest.mark.parametrize(("dtype", "kernel"), [("f32", "cudnn_batch_norm"), ("f16", "cudnn_batch_norm"),
                                               ("bf16", "native_batch_norm")])  # fmt: skip
def test_batch_normalisation_is_told_apart_by_whose_kernel_it_is(dtype: str, kernel: str) -> None:
    x, moment = TensorSpec(dtype, (8, 64, 56, 56)), TensorSpec("f32", (64,))
    call = Call("native_batch_norm.default", (x, moment, moment, moment, moment, True, 0.1, 1e-5), (), (x,))
    assert describe(call).variant == kernel
