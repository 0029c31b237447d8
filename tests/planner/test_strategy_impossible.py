"""Combinations that cannot run, and the reason a user is given for each."""

from __future__ import annotations

import pytest

from catalog.accelerator import Accelerator
from planner.strategy import HardwareChoice, Strategy, impossible

GIB = 1 << 30
TFLOP = 1e12


def card(name: str, **peak_tflop_per_s: float) -> Accelerator:
    peaks = {dtype: rate * TFLOP for dtype, rate in peak_tflop_per_s.items()}
    return Accelerator(
        name=name,
        vendor="nvidia",
        memory_bytes=16 * GIB,
        usable_memory_bytes=15 * GIB,
        usable_memory_known="given",
        usable_memory_source="a card made for this test",
        memory_bytes_per_s=1e12,
        peak_flop_per_s=peaks,
    )


# Dense rates of NVIDIA's data sheets: V100 SXM2 has fp16 tensor cores alone, A100 brought tf32 and bf16.
V100 = card("v100-sxm2-32gb", fp32=15.7, fp16=125)
A100 = card("a100-sxm4-80gb", fp32=19.5, tf32=156, fp16=312, bf16=312)


def on(count: int, gpus_per_node: int | None = 8) -> HardwareChoice:
    return HardwareChoice("any", count, gpus_per_node)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16"])
@pytest.mark.parametrize("count", [1, 3, 6, 8, 12, 72])
def test_an_a100_takes_every_precision_on_any_count(precision: str, count: int) -> None:
    assert impossible(Strategy(precision=precision), on(count), A100) is None


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op"])
def test_sharding_over_one_gpu_is_allowed_and_changes_nothing(sharding: str) -> None:
    assert impossible(Strategy(sharding=sharding), on(1), A100) is None


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(tensor_parallel=4),
        Strategy(tensor_parallel=8, sharding="fsdp"),
        Strategy(sharding="hsdp"),
        Strategy(sharding="zero2", offload="optimizer"),
        Strategy(sharding="zero3", offload="all"),
        Strategy(sharding="fsdp", offload="all", optimizer="sgd"),
        Strategy(optimizer="adam", optimizer_implementation="fused"),
        Strategy(attention="flash_attention_2", precision="bf16"),
    ],
)
def test_two_nodes_of_eight_take_it(strategy: Strategy) -> None:
    assert impossible(strategy, on(16), A100) is None


@pytest.mark.parametrize(
    ("strategy", "hardware", "accelerator", "reason"),
    [
        (Strategy(precision="bf16-mixed"), on(1), V100, "v100-sxm2-32gb has no bf16 matrix units"),
        (Strategy(precision="bf16"), on(1), V100, "use fp16-mixed"),
        (Strategy(precision="tf32"), on(1), V100, "v100-sxm2-32gb has no tf32 matrix units"),
        (Strategy(precision="fp16-mixed", attention="flash_attention_2"), on(1), V100, "Ampere GPU or newer"),
        (Strategy(precision="fp32", attention="flash_attention_2"), on(1), A100, "takes bf16 or fp16 only, not fp32"),
        (Strategy(tensor_parallel=4), on(6), A100, "tensor_parallel 4 does not divide 6 GPUs"),
        (Strategy(tensor_parallel=2), on(1), A100, "tensor_parallel 2 does not divide 1 GPUs"),
        (Strategy(tensor_parallel=16), on(16), A100, "tensor_parallel 16 does not divide the 8 GPUs of a node"),
        (Strategy(tensor_parallel=3), on(24), A100, "tensor_parallel 3 does not divide the 8 GPUs of a node"),
        (Strategy(tensor_parallel=2, sharding="zero3"), on(8), A100, "tensor_parallel with zero3 is not offered"),
        (Strategy(sharding="hsdp"), on(8), A100, "here is one node; use fsdp"),
        (Strategy(sharding="hsdp"), on(15), A100, "15 GPUs do not divide over 2"),
        (
            Strategy(offload="optimizer"),
            on(8),
            A100,
            "sharding none has no offload optimizer; zero1 or zero2 or zero3 has",
        ),
        (Strategy(sharding="zero2", offload="all"), on(8), A100, "zero3 or fsdp or fsdp-grad-op or hsdp has"),
        (Strategy(sharding="fsdp", offload="optimizer"), on(8), A100, "sharding fsdp has no offload optimizer"),
        (
            Strategy(sharding="zero2", offload="optimizer", optimizer="muon"),
            on(8),
            A100,
            "on the host, which has no muon",
        ),
        (Strategy(optimizer="lion", optimizer_implementation="fused"), on(1), A100, "torch has no fused lion"),
        (Strategy(global_batch=1024), on(3), A100, "does not divide over 3 data-parallel ranks; 1023 or 1026 would"),
    ],
)
def test_it_is_excluded_with_what_to_change(
    strategy: Strategy, hardware: HardwareChoice, accelerator: Accelerator, reason: str
) -> None:
    said = impossible(strategy, hardware, accelerator)
    assert said is not None
    assert reason in said
    assert "\n" not in said
