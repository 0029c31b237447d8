"""State-space models by mamba_ssm's kernels: what they keep, how much they compute, and which models take them.

What is kept follows from state-spaces/mamba: selective_scan_interface.py (MambaInnerFn, with checkpoint_lvl 1) and
triton/ssd_combined.py (MambaSplitConv1dScanCombinedFn).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import planner
from catalog.errors import RigplanError
from planner.cache import TraceKnobs, Workloads
from planner.cost import seconds
from planner.machine import resolve
from planner.memory import Scratch, replay
from planner.operators import FREE, UNKNOWN, describe
from planner.spec import DataSpec, ModelSpec
from planner.strategy import HardwareChoice
from planner.trace import trace
from planner.workload import CALL, Workload
from planner.wrappers import fused_scan
from planner.wrappers.chunk_scan import mamba2_split_conv1d_scan_combined
from planner.wrappers.selective_scan import mamba_inner_fn

KNOBS = TraceKnobs("bf16-mixed", "sdpa", "none", "adamw", "foreach", 1.0, (9, 0))
LENGTH, MICRO_BATCH, CHUNK = 32, 2, 16
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128}
HEADS = {"intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
STATES = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": CHUNK}
MODELS: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 8},
    "falcon_mamba": {"state_size": 8},
    "mamba2": {"state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": CHUNK},
    "bamba": {**HEADS, **STATES, "attn_layer_indices": [1]},
    "jamba": {**HEADS, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8},
}


def _model(kind: str, scan: str) -> ModelSpec:
    return ModelSpec.model_validate({"config": {"model_type": kind, **TINY, **MODELS[kind]}, "scan": scan})


@cache
def _traced(kind: str, scan: str) -> Workload:
    return trace(_model(kind, scan), DataSpec(sequence_length=LENGTH), KNOBS, MICRO_BATCH)


def _kept_bytes(run: Callable[..., Any], *given: Any, **options: Any) -> int:
    """Bytes of what autograd keeps of a call beyond what the call was given."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        out = run(*given, **options)
    assert out.requires_grad
    inputs = {item.untyped_storage()._cdata for item in (*given, *options.values()) if isinstance(item, torch.Tensor)}
    return sum(size for key, size in kept.items() if key not in inputs)


def _weight(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta", requires_grad=True)


def test_mamba_keeps_its_projection_output_and_states_and_makes_the_rest_again() -> None:
    batch, width, length, states, rank = 2, 32, 4096, 8, 4
    kept = _kept_bytes(
        mamba_inner_fn, _weight(batch, 2 * width, length), _weight(width, 1, 4), _weight(width),
        _weight(rank + 2 * states, width), _weight(width, rank), _weight(16, width), None, _weight(width, states),
        D=_weight(width), delta_bias=_weight(width),
    )  # fmt: skip
    projected = batch * length * (rank + 2 * states)
    by_states = 2 * batch * length * states  # B and C, laid out for the kernel
    every_2048 = batch * width * (length // 2048) * 2 * states
    assert kept == 4 * (projected + by_states + batch * length * width + every_2048)


def test_mamba_2_keeps_the_scans_output_and_the_norms_scale() -> None:
    batch, length, heads, size, states, groups = 2, 64, 4, 8, 16, 2
    width = heads * size
    channels = width + 2 * groups * states
    kept = _kept_bytes(
        mamba2_split_conv1d_scan_combined, _weight(batch, length, width + channels + heads), _weight(channels, 4),
        _weight(channels), _weight(heads), _weight(heads), D=_weight(heads), chunk_size=32,
        rmsnorm_weight=_weight(width), outproj_weight=_weight(24, width), headdim=size, ngroups=groups,
    )  # fmt: skip
    assert kept == 4 * (batch * length * width + batch * length * groups)


@pytest.mark.parametrize("kind", MODELS)
def test_every_weight_of_a_model_with_a_scan_is_trained_through_the_kernels(kind: str) -> None:
    fused = _traced(kind, "fused")
    assert all(parameter.gradient_block is not None for parameter in fused.parameters if parameter.trainable)
    assert fused_scan.FUSED in fused.assumptions
    names = {call.name for call in fused.calls}
    assert "rigplan.scan_stream.default" in names
    assert not [call for call in fused.calls if describe(call).kind == UNKNOWN]


# torch's loop keeps Mamba's state of every token; of Mamba-2's only those between chunks.
@pytest.mark.parametrize(("kind", "share"), [("mamba", 0.4), ("mamba2", 0.7)])
def test_the_kernels_have_the_loops_parameters_and_less_of_its_memory(kind: str, share: float) -> None:
    eager, fused = (_traced(kind, scan) for scan in ("eager", "fused"))
    assert [(one.name, one.shape) for one in eager.parameters] == [(one.name, one.shape) for one in fused.parameters]
    assert fused_scan.EAGER in eager.assumptions
    backward = [replay(workload, Scratch((), lambda _: ())).peaks["backward"] for workload in (eager, fused)]
    assert backward[1] < share * backward[0]


def test_the_flop_of_the_kernels_are_those_of_their_sizes() -> None:
    workload = _traced("mamba2", "fused")
    events = workload.segments["micro_step"]
    flop: dict[str, float] = {}
    for at in events.values[events.codes == CALL]:
        operator = describe(workload.calls[at])
        flop[operator.variant] = flop.get(operator.variant, 0.0) + operator.flop
    layers, chunks, heads, groups, size, states = 2, MICRO_BATCH * LENGTH // CHUNK, 8, 2, 16, 16
    # forward and, made again, in backward
    assert flop["chunk_state"] == 2 * layers * 2 * chunks * heads * size * states * CHUNK
    assert flop["chunk_scores"] == 2 * layers * 2 * chunks * groups * CHUNK * CHUNK * states
    # once: the state that came in, and the lower half of the chunk's own square
    assert flop["chunk_scan"] == layers * 2 * chunks * heads * CHUNK * size * (states + CHUNK // 2)
    scanned = [describe(call) for call in _traced("mamba", "fused").calls if call.arguments[:1] == ("selective_scan",)]
    assert {operator.flop for operator in scanned} == {9.0 * MICRO_BATCH * LENGTH * 128 * 8}


def test_no_gpu_is_said_to_have_been_timed_with_the_kernels() -> None:
    pricing = resolve(HardwareChoice("h200-sxm", 1)).pricing(tf32=False)
    calls = _traced("mamba2", "fused").calls
    words = {call.name: seconds(describe(call), call, pricing).known for call in calls if describe(call).kind != FREE}
    assert {word for name, word in words.items() if name.startswith("rigplan.scan_")} == {"prior"}
    assert {word for name, word in words.items() if not name.startswith("rigplan.scan_")} == {"measured"}


def test_transformers_has_its_own_functions_back_after_a_trace() -> None:
    _traced("mamba", "fused")
    file = sys.modules["transformers.models.mamba.modeling_mamba"]
    assert file.mamba_inner_fn is not mamba_inner_fn


def test_before_a_loop_over_tokens_is_traced_its_wait_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []
    for scan in ("eager", "fused"):
        Workloads(_model("mamba", scan), DataSpec(sequence_length=2), said.append).at(KNOBS, 1)
    slow, quick = [line for line in said if line.startswith("tracing mamba by config")]
    assert "token by token, which takes many minutes; with `model.scan: fused` seconds" in slow
    assert "minutes" not in quick


def test_a_model_without_a_scan_and_a_compiled_one_are_refused() -> None:
    spec: dict[str, Any] = {
        "model": {"config": {"model_type": "llama", **TINY, **HEADS}, "scan": "fused"}, "data": {"sequence_length": 8},
        "training": {"micro_batch": 1}, "hardware": {"gpu": "h200-sxm"},
    }  # fmt: skip
    with pytest.raises(RigplanError, match=r"scan: fused is for models of transformers with a scan.*use scan: eager"):
        planner.fits(spec)
    model = _model("mamba", "fused").model_dump(exclude_none=True)
    with pytest.raises(RigplanError, match="compile: true is not modelled with scan: fused yet; use compile: false"):
        planner.fits({**spec, "model": model, "training": {"micro_batch": 1, "compile": True}})
