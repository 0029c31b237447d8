"""QLoRA: 4-bit storage as bitsandbytes keeps it, and working copies that come and go."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from catalog.errors import RigplanError
from planner.cache import TraceKnobs
from planner.collectives import Mesh
from planner.memory import Scratch, replay
from planner.operators import UNKNOWN, describe
from planner.spec import Spec
from planner.trace import trace
from planner.workload import ALLOCATE, FREE, Workload
from planner.wrappers import quantized

KNOBS = TraceKnobs("bf16-mixed", "sdpa", "none", "adamw", "foreach", 1.0, (9, 0))
BARE = Scratch((), lambda _: ())
PYTHIA_14M = 14_067_712
LAYERS, HIDDEN, INNER = 6, 128, 512
# Query-key-value, the projection of attention and the two of the feed-forward net, of each layer.
LINEAR = (3 * HIDDEN * HIDDEN, HIDDEN * HIDDEN, HIDDEN * INNER, HIDDEN * INNER)
ADAPTERS = 8 * (4 * HIDDEN + 2 * HIDDEN + 2 * (HIDDEN + INNER))  # rank 8, in and out of each of the four


@cache
def _traced(quantize: str | None = "nf4", knobs: TraceKnobs = KNOBS) -> Workload:
    lora = {"r": 8, "alpha": 16, "target_modules": "all-linear", "quantize": quantize}
    spec = Spec.load({
        "model": {"name": "pythia-14m", "lora": lora}, "data": {"sequence_length": 64}, "hardware": {"gpu": "h200-sxm"},
    })  # fmt: skip
    return trace(spec.model, spec.data, knobs, 2)


def _peak(workload: Workload) -> int:
    return replay(workload, BARE).peak_allocated_bytes


def test_a_weight_takes_half_a_byte_and_the_rest_stays_whole() -> None:
    """QLoRA: 4 bits a weight and 0.127 bits for its scales (Dettmers et al. 2023, section 3)."""
    workload = _traced()
    packed = LAYERS * sum(LINEAR)
    assert workload.bytes_of("weights") == packed // 2 + 4 * (PYTHIA_14M - packed + LAYERS * ADAPTERS)
    scales = workload.bytes_of("buffers") - _traced(None).bytes_of("buffers")
    tables = 4 * LAYERS * len(LINEAR) * (quantized.SCALE_LEVELS + quantized.LEVELS + 1)
    assert scales == tables + LAYERS * sum(size // 64 + 4 * math.ceil(size / 64 / 256) for size in LINEAR)
    assert (scales - tables) * 8 / packed == pytest.approx(0.127, abs=0.001)


def test_a_packed_model_still_has_all_its_parameters_and_trains_only_its_adapters() -> None:
    assert _traced().parameter_count == _traced(None).parameter_count == PYTHIA_14M + LAYERS * ADAPTERS
    assert _traced().trainable_count == LAYERS * ADAPTERS


def test_the_pure_bf16_model_keeps_norms_and_embeddings_in_two_bytes() -> None:
    packed = LAYERS * sum(LINEAR)
    pure = _traced("nf4", replace(KNOBS, precision="bf16"))
    assert pure.bytes_of("weights") == packed // 2 + 2 * (PYTHIA_14M - packed) + 4 * LAYERS * ADAPTERS


def test_qlora_needs_less_than_lora() -> None:
    assert _peak(_traced()) < _peak(_traced(None))


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_working_copies_live_one_at_a_time(checkpointing: str) -> None:
    workload = _traced("nf4", replace(KNOBS, checkpointing=checkpointing))
    events = workload.segments["micro_step"]
    sizes = {2 * size for size in LINEAR}
    copies = {index for index, call in enumerate(workload.calls) if call.name == "rigplan.dequantize_nf4.default"}
    written = alive = most = 0
    born: list[int] = []
    live: set[int] = set()
    for code, value in zip(events.codes.tolist(), events.values.tolist(), strict=True):
        if code == ALLOCATE:
            born.append(value)
        elif code == FREE:
            live.discard(value)
        elif value in copies and code == 0:
            assert int(workload.block_bytes[born[-1]]) in sizes
            live.add(born[-1])
            written += 1
            most = max(most, len(live))
        alive = len(live)
    passes = 3 if checkpointing == "full" else 2  # forward, again, backward
    first_layer = 2  # attention and net side by side, on an input that needs no gradient
    assert passes * LAYERS * len(LINEAR) - first_layer <= written <= passes * LAYERS * len(LINEAR)
    assert (most, alive) == (1, 0)


def test_every_kernel_of_a_packed_layer_has_a_price() -> None:
    named = [call for call in _traced().calls if call.name.startswith("rigplan.dequantize")]
    assert {call.name for call in named} == {
        "rigplan.dequantize_nf4.default", "rigplan.dequantize_scales.default",
    }  # fmt: skip
    assert UNKNOWN not in {describe(call).kind for call in named}


def test_what_was_taken_for_granted_is_told() -> None:
    assert any("nf4 in blocks of 64" in line for line in _traced().assumptions)
    assert any("in fp32 (as peft prepares a 4-bit model)" in line for line in _traced().assumptions)


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(RigplanError, match="no linear layer to quantise"):
        quantized.apply(torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3)), "bf16")


def test_packed_weights_split_over_gpus_are_refused() -> None:
    lora = {"r": 8, "alpha": 16, "target_modules": "all-linear", "quantize": "nf4"}
    spec = Spec.load({"model": {"name": "pythia-14m", "lora": lora}, "hardware": {"gpu": "h200-sxm"}})
    with pytest.raises(RigplanError, match="4-bit weights are not modelled split over GPUs"):
        trace(spec.model, spec.data, replace(KNOBS, mesh=Mesh("fsdp", 2)), 1)
