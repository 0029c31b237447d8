"""What is remembered of an operator's results must change nothing of a trace but its time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.cache import TraceKnobs
from planner.fake_results import FakeResults
from planner.spec import Spec
from planner.trace import trace
from planner.workload import FREE, Workload

MODELS = Path(__file__).parents[2] / "examples" / "models"
TINY_GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 512}
TINY_T5 = {"model_type": "t5", "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 96}


def traced(model: dict[str, object], precision: str, checkpointing: str, optimizer: str) -> Workload:
    spec = Spec.load({"model": model, "data": {"sequence_length": 32}, "hardware": {"gpu": "a100-80gb-sxm"}})
    knobs = TraceKnobs(precision, "sdpa", checkpointing, optimizer, "foreach", 1.0, (8, 0))
    return trace(spec.model, spec.data, knobs, 2)


@pytest.mark.parametrize(
    ("model", "precision", "checkpointing", "optimizer"),
    [
        ({"config": TINY_GPT2}, "bf16-mixed", "full", "adamw"),
        pytest.param({"config": TINY_T5}, "fp32", "none", "adafactor", marks=pytest.mark.slow),
        pytest.param({"module": f"{MODELS}/unet.py:make"}, "fp16-mixed", "none", "sgd", marks=pytest.mark.slow),
        ({"module": f"{MODELS}/lstm.py:make"}, "bf16-mixed", "none", "adam"),
    ],
)
def test_a_trace_with_remembered_results_is_the_trace_without(
    model: dict[str, object], precision: str, checkpointing: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = traced(model, precision, checkpointing, optimizer)
    monkeypatch.setattr(FakeResults, "run", lambda self, func, run, args, kwargs, tensors: run(*args, **kwargs))
    slow = traced(model, precision, checkpointing, optimizer)
    assert quick.calls == slow.calls
    assert np.array_equal(quick.block_bytes, slow.block_bytes)
    assert np.array_equal(quick.block_categories, slow.block_categories)
    for name, events in slow.segments.items():  # autocast drops its cached weights in no promised order
        found = quick.segments[name]
        assert np.array_equal(found.codes, events.codes)
        assert np.array_equal(found.values[found.codes != FREE], events.values[events.codes != FREE])


def results_twice(operator, *arguments):
    """An operator's result from torch, and the one that is remembered."""
    remembered = FakeResults()
    tensors = [item for item in arguments if isinstance(item, torch.Tensor)]
    return [remembered.run(operator, operator, arguments, {}, tensors) for _ in range(2)]


def test_a_view_shares_the_storage_of_what_it_views() -> None:
    with FakeTensorMode():
        whole = torch.empty(6, 4)
        first, second = results_twice(torch.ops.aten.slice.Tensor, whole, 0, 2, 5)
        assert second is not first
        assert second.untyped_storage()._cdata == whole.untyped_storage()._cdata
        assert (second.shape, second.stride(), second.storage_offset()) == ((3, 4), (4, 1), 8)


def test_an_operator_in_place_returns_its_argument() -> None:
    with FakeTensorMode():
        whole = torch.empty(6, 4)
        first, second = results_twice(torch.ops.aten.mul_.Tensor, whole, 2.0)
        assert first is whole
        assert second is whole


def test_one_and_one_point_zero_are_told_apart() -> None:
    with FakeTensorMode():
        counts, remembered = torch.empty(3, dtype=torch.int64), FakeResults()
        add = torch.ops.aten.add.Tensor
        dtypes = [remembered.run(add, add, (counts, value), {}, [counts]).dtype for value in (1, 1.0)]
        assert dtypes == [torch.int64, torch.float32]
