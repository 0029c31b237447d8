"""Prices: bounded by physics, never falling when work grows, exact where something was measured."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.errors import RigplanError
from catalog.profile import resolve
from catalog.store import accelerator, accelerator_names
from planner.call import Call, TensorSpec
from planner.cost import Pricing, floor_seconds, point_key, price, seconds
from planner.operators import FREE, KINDS, SHAPE_FIELDS, Operator, describe


def machine(name: str = "h200-sxm", tf32: bool = False) -> Pricing:
    device = accelerator(name)
    return Pricing(device, resolve(device)[0], tf32)


@pytest.fixture(scope="module")
def h200() -> Pricing:
    return machine()


def product(m: int, n: int, k: int, dtype: str = "bf16") -> Call:
    """A linear layer's forward product."""
    a, b = TensorSpec(dtype, (m, k)), TensorSpec(dtype, (k, n), (1, k))
    return Call("mm.default", (a, b), (), (TensorSpec(dtype, (m, n)),))


def stream(elements: int, dtype: str = "bf16") -> Call:
    x = TensorSpec(dtype, (elements,))
    return Call("add.Tensor", (x, x), (), (x,))


def took(call: Call, at: Pricing) -> float:
    return seconds(describe(call, tf32=at.tf32), call, at).seconds


def test_a_large_bf16_product_runs_near_the_published_ceiling_of_the_h200(h200: Pricing) -> None:
    call = product(8192, 8192, 8192)
    reached = describe(call).flop / took(call, h200)
    assert 0.80 * 790e12 < reached < 1.0 * 989.4e12  # 790 TFLOP/s: zzc0721/torch-performance-test-data


def test_an_odd_vocabulary_is_several_times_slower_than_an_aligned_one(h200: Pricing) -> None:
    # bf16 products of 50,265 columns ran at 0.10 to 0.27 of the peak on an H200, 50,304 columns at 0.73.
    odd, aligned = took(product(8192, 50265, 768), h200), took(product(8192, 50304, 768), h200)
    assert odd > 2.0 * aligned


def test_a_large_addition_streams_at_most_of_the_memory_bandwidth(h200: Pricing) -> None:
    call = stream(2**29)
    share = describe(call).bytes_moved / took(call, h200) / 4.8e12
    assert 0.80 < share < 0.97


def test_bf16_on_a_v100_is_emulated_and_slower_than_fp16() -> None:
    v100 = machine("v100-sxm2-16gb")
    slow, fast = took(product(4096, 4096, 4096, "bf16"), v100), took(product(4096, 4096, 4096, "f16"), v100)
    assert 5 < slow / fast < 20  # 94.8 against 10.3 TFLOP/s: zzc0721/torch-performance-test-data


def test_a_relative_that_ran_above_its_ceiling_makes_no_other_device_run_above_its_own() -> None:
    """An H200 did 782 TFLOP/s in a short timing, before its power limit told; 759 were published of it (zzc0721)."""
    quadro, call = machine("quadro-rtx-8000"), product(8192, 8192, 8192, "f16")
    rate = 2 * 8192**3 / seconds(describe(call), call, quadro).seconds
    assert 0.9 * quadro.rates().flop_per_s("f16") < rate <= quadro.rates().flop_per_s("f16")


def test_a_geforce_runs_at_its_fp32_accumulate_rate() -> None:
    call = product(8192, 8192, 8192)
    reached = describe(call).flop / took(call, machine("rtx-4090"))
    assert 110e12 < reached <= 175e12  # published: 165 TFLOP/s, not 330


def test_tf32_speeds_fp32_products_up_and_leaves_streams_alone() -> None:
    fp32, tf32 = machine(), machine(tf32=True)
    call = product(4096, 4096, 4096, "f32")
    assert took(call, tf32) < 0.5 * took(call, fp32)
    assert took(stream(2**24, "f32"), tf32) == took(stream(2**24, "f32"), fp32)


def test_every_device_of_the_catalog_prices_products_and_streams_above_physics() -> None:
    assert len(accelerator_names()) > 90
    for name in accelerator_names():
        at = machine(name)
        for call in (product(4096, 4096, 4096), product(512, 768, 768, "f32"), stream(2**28), stream(10)):
            cost = seconds(describe(call), call, at)
            assert 1.0 > cost.seconds >= cost.floor_seconds, (name, call)
            assert cost.floor_seconds > 0 or describe(call).flop == 0, (name, call)


def test_an_exact_point_is_returned_as_it_was_measured(h200: Pricing) -> None:
    call = product(1000, 1000, 1000)
    exact = Pricing(h200.accelerator, replace(h200.profile, points={point_key(call, False): 1.2345e-5}))
    cost = seconds(describe(call), call, exact)
    assert (cost.seconds, cost.known) == (1.2345e-5, "measured")
    assert seconds(describe(call), None, exact).seconds != 1.2345e-5


def test_a_sample_of_the_curve_is_reproduced_within_its_noise(h200: Pricing) -> None:
    samples = h200.profile.curves["matmul/bf16"][-1]
    errors = []
    for row in range(0, len(samples), 9):
        shape = tuple(int(value) for value in samples.shape[row])
        flop, read, written = samples.work[row]
        variant = samples.variants[samples.variant[row]]
        operator = Operator("matmul", variant, "bf16", shape, flop, int(read), int(written))
        errors.append(abs(math.log(seconds(operator, None, h200).seconds / samples.seconds[row])))
    assert len(errors) > 30
    assert np.median(errors) < 0.02


sizes = st.integers(min_value=1, max_value=2**15)
dims = st.integers(min_value=1, max_value=2**14)


@settings(max_examples=60, deadline=None)
@given(m=sizes, n=dims, k=dims, dtype=st.sampled_from(["bf16", "f16", "f32"]))
def test_a_product_never_gets_cheaper_when_its_rows_double(m: int, n: int, k: int, dtype: str) -> None:
    assert took(product(2 * m, n, k, dtype), H200) >= took(product(m, n, k, dtype), H200)


@settings(max_examples=40, deadline=None)
@given(elements=st.integers(min_value=1, max_value=2**31), dtype=st.sampled_from(["bf16", "f32"]))
def test_a_stream_never_gets_cheaper_when_it_doubles(elements: int, dtype: str) -> None:
    # but for the noise of what was timed: 768 elements took 1.460 us, 1,536 took 1.449
    assert took(stream(2 * elements, dtype), H200) >= 0.99 * took(stream(elements, dtype), H200)


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 64), heads=st.sampled_from([4, 12, 32]), length=st.integers(16, 8192),
    head_dim=st.sampled_from([64, 128]), causal=st.booleans(),
)  # fmt: skip
def test_attention_never_gets_cheaper_with_more_sequences_or_longer_ones(
    batch: int, heads: int, length: int, head_dim: int, causal: bool
) -> None:
    def call(batch: int, length: int) -> Call:
        q, lse = TensorSpec("bf16", (batch, heads, length, head_dim)), TensorSpec("f32", (batch, heads, length))
        return Call("rigplan.attention_forward.default", (q, q, q, None, 0.0, causal, "cudnn"), (), (q, lse))

    one = took(call(batch, length), H200)
    assert took(call(2 * batch, length), H200) >= one
    assert took(call(batch, 2 * length), H200) >= one


H200 = machine()


def test_two_hundred_calls_are_priced_in_half_a_second(h200: Pricing) -> None:
    operators = [
        describe(call)
        for step in range(50)
        for call in (
            product(512 + 8 * step, 1024, 4096), product(1024, 512 + 64 * step, 768), stream(1000 * (step + 1)),
            Call("_softmax.default", (TensorSpec("f32", (64, 8 + step)),), (), (TensorSpec("f32", (64, 8 + step)),)),
        )
    ]  # fmt: skip
    price(operators[:4], h200)  # curves made ready
    fastest = math.inf
    for _ in range(20):
        h200._costs.clear()
        start = time.process_time()
        price(operators, h200)
        fastest = min(fastest, time.process_time() - start)
    assert len(h200._costs) == 200
    assert fastest < 0.5  # 0.12 to 0.33 s of processor time were seen on two cores, free and shared by four


def test_free_calls_cost_nothing_and_unknown_ones_their_bytes(h200: Pricing) -> None:
    x = TensorSpec("f32", (2**26,))
    view, strange = Call("view.default", (x,), (), (x,)), Call("strange.default", (x,), (), (x,))
    assert describe(view).kind == FREE
    assert took(view, h200) == 0.0
    assert took(strange, h200) > floor_seconds(describe(strange), h200) > 0.8 * 2**29 / 4.8e12


def test_every_priced_kind_has_a_price_on_a_device_without_any_timing_of_its_own() -> None:
    at = machine("gaudi2")
    for kind in sorted(KINDS):
        operator = Operator(kind, "any", "bf16", (4,) * len(SHAPE_FIELDS[kind]), 1e9, 10**8, 10**8)
        assert 1e-6 < seconds(operator, None, at).seconds < 1.0, kind


def test_a_profile_that_describes_shapes_otherwise_is_refused_in_a_line(h200: Pricing) -> None:
    (gathers,) = h200.profile.curves["gather/any"]
    older = replace(gathers, shape=gathers.shape[:, :2])
    profile = replace(h200.profile, points={}, curves={**h200.profile.curves, "gather/any": (older,)})
    table, places = TensorSpec("f32", (512, 64)), TensorSpec("i64", (16,))
    call = Call("embedding.default", (table, places), (), (TensorSpec("f32", (16, 64)),))
    with pytest.raises(RigplanError, match=r"gather/any .* has 2 numbers a shape; wanted 3 \(rows, length, table\)"):
        took(call, Pricing(h200.accelerator, profile))
