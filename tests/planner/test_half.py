"""precision: fp16 keeps fp16 weights and gradients, and fp32 copies beside the optimizer's states."""

from __future__ import annotations

import pytest

import planner
from catalog.errors import RigplanError

SPEC = {
    "model": {"config": {"model_type": "bert", "num_hidden_layers": 2}, "task": "masked-lm", "attention": "eager"},
    "data": {"sequence_length": 128},
    "training": {"precision": "fp16", "optimizer": "adam", "micro_batch": 2},
    "hardware": {"gpu": "v100-sxm2-16gb"},
}


def test_weights_and_gradients_take_two_bytes_and_copies_with_states_twelve() -> None:
    found = planner.estimate(SPEC)
    assert found.memory.by_category["weights"] == pytest.approx(2 * found.parameters, rel=0.01)
    assert found.memory.by_category["optimizer"] == pytest.approx(12 * found.parameters, rel=0.01)
    assert found.strategy.precision == "fp16"


def test_its_products_run_on_the_tensor_cores_of_a_gpu_without_bf16() -> None:
    half, mixed = (
        planner.estimate({**SPEC, "training": {**SPEC["training"], "precision": precision}}).step
        for precision in ("fp16", "fp16-mixed")
    )
    assert half is not None
    assert mixed is not None
    assert half.seconds < 1.1 * mixed.seconds


def test_fsdp_keeps_fp32_weights_so_fp16_is_refused_with_what_to_use() -> None:
    asked = {
        **SPEC,
        "training": {**SPEC["training"], "sharding": "fsdp"},
        "hardware": {"gpu": "v100-sxm2-16gb", "count": 2},
    }
    with pytest.raises(RigplanError, match="use fp16-mixed"):
        planner.estimate(asked)
