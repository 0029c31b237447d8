"""Combinations on several processes, and on one where several cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import planner
from planner import workers

MODEL = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 512,
}  # fmt: skip
ASKED: dict[str, Any] = {
    "model": {"config": MODEL, "task": "causal-lm"},
    "data": {"sequence_length": 32},
    "training": {"micro_batch": 2, "checkpointing": ["none", "full"], "optimizer": ["adamw", "sgd"]},
    "hardware": {"gpu": "a100-sxm4-80gb"},
}


def test_after_a_trace_a_forked_process_can_still_trace() -> None:
    # torch that was built for a GPU would start autograd's threads for one that is not there
    planner.estimate({**ASKED, "training": {"micro_batch": 2}})
    if torch.cuda.is_available():
        pytest.skip("autograd has threads for the GPU that is there")
    assert workers._forks_can_trace()


def test_where_no_process_can_be_forked_one_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("forked")

    monkeypatch.setattr(workers, "_forks_can_trace", lambda: False)
    monkeypatch.setattr(workers, "forked", never)
    found = planner.plan(ASKED)
    assert len(found.ranked) == 4
