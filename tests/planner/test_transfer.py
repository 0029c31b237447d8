"""What one device's timings say of another: streams by bandwidth and cycles, products by ceilings and power."""

from __future__ import annotations

import numpy as np
import pytest

from catalog.accelerator import Accelerator
from catalog.ceilings import ceiling, throttling
from catalog.profile import prior_factors
from catalog.store import accelerator, accelerators
from planner import machine
from planner.call import Call, TensorSpec
from planner.cost import price, seconds
from planner.operators import Operator, describe
from planner.roofline import Rates, base_seconds, memory_seconds, rates, transferred_seconds
from planner.strategy import HardwareChoice

GIB = 1 << 30


def at(name: str) -> Rates:
    return rates(accelerator(name), prior_factors())


def moved(bytes_each: float) -> np.ndarray:
    return np.array([[0.0, bytes_each / 2, bytes_each / 2]])


def carried(took: np.ndarray, work: np.ndarray, theirs: Rates, here: Rates) -> float:
    """A stream of these bytes that took so long there."""
    stream = ("pointwise", "f32", np.array(["add"]), np.array([[work[0, 1] / 4, 0.0, 0.0, 0.0]]))
    return float(transferred_seconds(took, *stream, work, theirs, here)[0])


def product(
    m: int, n: int, k: int, batch: int = 1, layout: str = "TN", tf32: bool = False, dtype: str = "f32"
) -> Operator:
    """C[m, n] = A[m, k] B[k, n]; TN is a linear layer, NN the gradient of its input, NT that of its weight."""
    lead, steps = ((batch,), (1,)) if batch > 1 else ((), ())
    a = TensorSpec(dtype, (*lead, m, k), (*(m * k for _ in steps), 1, m) if layout[1] == "T" else None)
    b = TensorSpec(dtype, (*lead, k, n), (*(k * n for _ in steps), 1, k) if layout[0] == "T" else None)
    name = "bmm.default" if batch > 1 else "mm.default"
    return describe(Call(name, (a, b), (), (TensorSpec(dtype, (*lead, m, n)),)), tf32=tf32)


def taken(gpu: str, operators: list[Operator], tf32: bool = False) -> list[float]:
    prices = machine.resolve(HardwareChoice(gpu=gpu)).pricing(tf32=tf32)
    price(operators, prices)
    return [seconds(operator, None, prices).seconds for operator in operators]


SHAPES = [
    (4096, 3072, 768), (4096, 768, 3072), (768, 3072, 4096), (50304, 768, 4096), (4096, 50304, 768),
    (512, 512, 512), (2048, 2048, 2048), (16384, 1024, 1024), (1024, 4096, 32768),
]  # fmt: skip
WITH_TF32 = [
    "rtx-3060-ti", "rtx-3090", "rtx-a4000", "rtx-a6000", "a40", "a10", "a100-sxm4-80gb", "a100-pcie-40gb", "l4", "l40s",
    "rtx-4090", "rtx-5090", "h100-sxm5-80gb", "h100-pcie-80gb", "h200-sxm", "b200-sxm",
]  # fmt: skip


@pytest.mark.parametrize("gpu", WITH_TF32)
@pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
def test_tf32_is_leave_to_be_faster_and_so_is_never_slower(gpu: str, layout: str) -> None:
    def both(batch: int) -> list[tuple[float, float]]:
        plain = [product(*shape, batch=batch, layout=layout) for shape in SHAPES]
        quick = [product(*shape, batch=batch, layout=layout, tf32=True) for shape in SHAPES]
        return list(zip(taken(gpu, quick, tf32=True), taken(gpu, plain), strict=True))

    for batch in (1, 24):
        for (quick, plain), shape in zip(both(batch), SHAPES, strict=True):
            assert quick <= plain * (1.2 if gpu == "h200-sxm" else 1.0001), (shape, batch)  # measured on an H200


@pytest.mark.parametrize("gpu", ["rtx-3090", "rtx-a6000", "rtx-4090", "a100-sxm4-80gb"])
def test_a_large_tf32_product_reaches_the_ceiling_of_its_own_device(gpu: str) -> None:
    (took,) = taken(gpu, [product(8192, 8192, 8192, tf32=True)], tf32=True)
    assert 2 * 8192**3 / took == pytest.approx(ceiling(accelerator(gpu)).rate("tf32"), rel=0.12)


def test_what_hopper_loses_over_transposed_tf32_slow_tensor_cores_hardly_notice() -> None:
    def loss(gpu: str) -> float:
        straight, turned = taken(gpu, [product(4096, 4096, 4096, layout=way, tf32=True) for way in ("TN", "NT")], True)
        return turned / straight

    assert loss("h200-sxm") > 1.4  # measured: 0.96 and 0.61 of the ceiling
    assert loss("rtx-3090") < 1.15


@pytest.mark.parametrize("gpu", ["rtx-3090", "rtx-a6000", "a100-sxm4-80gb", "h100-sxm5-80gb"])
def test_fused_attention_in_fp32_is_no_slower_than_the_products_written_out(gpu: str) -> None:
    """A100: 26.8 TFLOP/s for 4,096 keys in heads of 64 (xformers, pull request 480), of fp32 products 15."""
    q = TensorSpec("f32", (2, 12, 2048, 64))
    lse = TensorSpec("f32", (2, 12, 2048))
    whole = describe(Call("rigplan.attention_forward.default", (q, q, q, None, 0.0, False, "efficient"), (), (q, lse)))
    scores = TensorSpec("f32", (24, 2048, 2048))
    softmax = describe(Call("_softmax.default", (scores, -1, False), (), (scores,)))
    apart = [product(2048, 2048, 64, batch=24), product(2048, 64, 2048, batch=24, layout="NN"), softmax]
    fused, *parts = taken(gpu, [whole, *apart])
    assert fused < 1.5 * sum(parts)
    assert whole.executed_flop / fused > 5e12


def test_a_stream_at_full_bandwidth_goes_by_the_bandwidths() -> None:
    h200, v100, work = at("h200-sxm"), at("v100-sxm2-16gb"), moved(GIB)
    full = memory_seconds(np.array([float(GIB)]), h200) + h200.factor("kernel_launch_s")
    there = carried(full, work, h200, v100)
    wanted = memory_seconds(np.array([float(GIB)]), v100)
    assert there == pytest.approx(wanted[0], rel=0.01)


def test_a_kernel_far_below_the_bandwidth_goes_by_the_cycles() -> None:
    h200, v100, work = at("h200-sxm"), at("v100-sxm2-16gb"), moved(GIB)
    slow = 20 * memory_seconds(np.array([float(GIB)]), h200)
    there = carried(slow, work, h200, v100)
    assert there / slow[0] == pytest.approx(h200.cycles_per_s / v100.cycles_per_s, rel=0.05)


@pytest.mark.parametrize("name", ["v100-sxm2-16gb", "rtx-3090", "l4", "h100-pcie-80gb", "mi300x"])
@pytest.mark.parametrize("slower", [1.0, 1.5, 4.0, 50.0])
def test_nothing_moves_faster_than_the_memory_of_the_device_it_is_brought_to(name: str, slower: float) -> None:
    h200, there, work = at("h200-sxm"), at(name), moved(GIB)
    took = slower * memory_seconds(np.array([float(GIB)]), h200) + h200.factor("kernel_launch_s")
    assert carried(took, work, h200, there) >= memory_seconds(np.array([float(GIB)]), there)[0] * 0.999


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


def test_a_card_that_power_does_not_hold_back_reaches_its_peak() -> None:
    peak = accelerator("rtx-2000-ada").peak_flop_per_s["bf16"]
    assert ceiling(accelerator("rtx-2000-ada")).rate("bf16") == pytest.approx(0.95 * peak)  # 70 W would sustain 54e12
    assert ceiling(accelerator("rtx-6000-ada")).rate("bf16") == pytest.approx(231e12)  # 300 W, of 364e12 on paper
    assert ceiling(accelerator("l4")).rate("bf16") == pytest.approx(69e12)  # as published in fp16


@pytest.mark.parametrize(
    "device", [item for item in accelerators() if item.vendor == "NVIDIA"], ids=lambda item: item.name
)
def test_fp32_is_never_priced_at_the_rate_of_tensor_cores(device: Accelerator) -> None:
    assert ceiling(device).rate("fp32") < 110e12  # an RTX 5090's 105e12 is the most a datasheet gives


def test_long_runs_slow_down_where_the_power_limit_is_near() -> None:
    near, far = throttling(accelerator("h200-sxm"), "bf16"), throttling(accelerator("rtx-3090"), "bf16")
    assert near == pytest.approx(1.0, abs=0.05)
    assert far == 0.0
    assert throttling(accelerator("a100-sxm4-80gb"), "bf16") < 0.5
    assert throttling(accelerator("h100-pcie-80gb"), "bf16") > 1.0
    assert throttling(accelerator("v100-sxm2-16gb"), "fp16") == 1.0  # not known of its class


def test_a_ceiling_that_a_watt_sustains_loses_more_in_long_runs_than_one_that_was_read_on_the_card() -> None:
    """An RTX 6000 Ada did 50 TFLOP/s in fp32 in a short timing, 35 in longer ones (chsasank/device-benchmarks #16)."""
    assert throttling(accelerator("l40s"), "bf16") == 1.25  # 269 TFLOP/s read on it
    assert throttling(accelerator("rtx-6000-ada"), "bf16") == pytest.approx((1.5 - 1.0) / (1.5 - 1.26))


@pytest.mark.parametrize(("dtype", "kernel"), [("f32", "cudnn_batch_norm"), ("f16", "cudnn_batch_norm"),
                                               ("bf16", "native_batch_norm")])  # fmt: skip
def test_batch_normalisation_is_told_apart_by_whose_kernel_it_is(dtype: str, kernel: str) -> None:
    x, moment = TensorSpec(dtype, (8, 64, 56, 56)), TensorSpec("f32", (64,))
    call = Call("native_batch_norm.default", (x, moment, moment, moment, moment, True, 0.1, 1e-5), (), (x,))
    assert describe(call).variant == kernel
