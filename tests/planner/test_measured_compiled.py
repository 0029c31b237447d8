"""Predicted against measured: 24 compiled training runs on H200s (tests/measured/h200_compiled*.jsonl).

The hosts of the two files differ by a quarter: convnext-base takes 57 ms a step on one and 44 on the other. The bounds
are the errors of the day rounded up, for runs that the host limits with room for such hosts, and may only go down.
Tracing a compiled model takes minutes: all slow.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.answer import Estimate
from planner.trace import versions

MEASURED = Path(__file__).parents[1] / "measured"
# Largest error in percent of (peak allocated, step).
BOUNDS = {
    "pythia-160m-compiled": (1.0, 4.0), "gpt2-compiled": (1.0, 3.0), "llama-3.2-1b-compiled": (1.0, 3.0),
    "pythia-410m-compiled": (1.0, 5.0), "qwen2.5-0.5b-compiled": (1.0, 3.0), "gpt2-medium-compiled": (1.0, 3.0),
    "gpt2-fp16-compiled": (1.0, 2.0), "dit-large-compiled": (1.0, 5.0), "olmo-2-1b-bf16-compiled": (1.0, 6.0),
    "pythia-1b-compiled": (1.0, 3.0), "pythia-1b-checkpoint-compiled": (1.0, 3.0), "vit-large-compiled": (1.0, 1.0),
    "roberta-large-compiled": (3.0, 9.0), "convnext-base-compiled": (1.0, 20.0), "resnet-50-compiled": (6.0, 16.0),
    "pythia-410m-short-compiled": (1.0, 3.0), "convnext-large-compiled": (1.0, 2.0),
    "roberta-large-wide-compiled": (1.0, 4.0), "llama-3.2-1b-checkpoint-compiled": (1.0, 2.0),
    "convnext-base-again-compiled": (1.0, 9.0), "gpt2-large-compiled": (1.0, 5.0), "vit-base-compiled": (1.0, 5.0),
    "pythia-70m-small-compiled": (1.0, 15.0), "resnet-50-again-compiled": (3.0, 8.0),
}  # fmt: skip
# transformers 5.17, with which the runs were measured, gives a compiled encoder a mask of ones without strides, which
# no fused attention takes; later versions leave it out.
MASKED = ("vit-large-compiled", "roberta-large-compiled", "vit-base-compiled", "roberta-large-wide-compiled")
# torch 2.11, with which they were measured, keeps the images of a depthwise convolution's backward as they lie; 2.13
# copies them into the order of its weight's gradient first (torch/_inductor/kernel/conv.py).
DEPTHWISE = ("convnext-base-compiled", "convnext-base-again-compiled", "convnext-large-compiled")


@cache
def runs() -> dict[str, dict[str, Any]]:
    """The compiled runs, and the eager ones that may be their twins."""
    paths = (MEASURED / name for name in ("h200_training.jsonl", "h200_compiled.jsonl", "h200_compiled_2.jsonl"))
    records = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return {record["name"]: record for record in records if "step_seconds" in record}


@cache
def predicted(name: str) -> Estimate:
    return planner.estimate(runs()[name]["spec"])


def skip_where_the_library_differs(name: str) -> None:
    if name in MASKED and not versions()["transformers"].startswith("5.17"):
        pytest.skip("transformers 5.17 gives a compiled encoder another attention")
    if name in DEPTHWISE and tuple(map(int, versions()["torch"].split(".")[:2])) >= (2, 13):
        pytest.skip("torch 2.13 compiles the backward of a depthwise convolution otherwise")


def twin(name: str) -> str:
    """The eager run of the same step: `gpt2-eager` or `vit-large` of `gpt2-compiled` and `vit-large-compiled`."""
    base = name.removesuffix("-compiled")
    return f"{base}-eager" if f"{base}-eager" in runs() else base


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDS)
def test_a_compiled_run_is_predicted_within_its_bounds(name: str) -> None:
    skip_where_the_library_differs(name)
    record, answer = runs()[name], predicted(name)
    peak, step = BOUNDS[name]
    assert answer.memory.peak_allocated_bytes == pytest.approx(record["peak_allocated_bytes"], rel=peak / 100)
    assert answer.step is not None
    assert answer.step.seconds == pytest.approx(record["step_seconds"], rel=step / 100)
    assert answer.step.floor_seconds < record["step_seconds"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BOUNDS if twin(name) in runs()])
def test_what_compiling_gains_is_predicted_within_a_tenth(name: str) -> None:
    skip_where_the_library_differs(name)
    answers = predicted(name).step, predicted(twin(name)).step
    assert answers[0] is not None
    assert answers[1] is not None
    measured = runs()[name]["step_seconds"] / runs()[twin(name)]["step_seconds"]
    assert answers[0].seconds / answers[1].seconds == pytest.approx(measured, rel=0.1)


LANGUINI = {
    record["name"]: record
    for record in map(json.loads, (MEASURED / "h200_languini.jsonl").read_text(encoding="utf-8").splitlines())
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * ("small" in name)) for name in LANGUINI]
)
def test_languinis_model_is_predicted_as_todays_torch_compiles_it(name: str) -> None:
    # its published sweep, made with torch 2.0 on other GPUs, took a third longer (docs/calibrating.md)
    record, answer = LANGUINI[name], planner.estimate(LANGUINI[name]["spec"])
    assert answer.memory.peak_allocated_bytes == pytest.approx(record["peak_allocated_bytes"], rel=0.002)
    assert answer.step is not None
    assert answer.step.seconds == pytest.approx(record["step_seconds"], rel=0.02)
