"""A real model traced on fake tensors: parameters, phases, precision, checkpointing."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from planner.cache import TraceKnobs
from planner.memory import Scratch, replay
from planner.spec import Spec
from planner.trace import trace
from planner.workload import ALLOCATE, FREE, GRADIENT, Workload

KNOBS = TraceKnobs("bf16-mixed", "sdpa", "none", "adamw", "foreach", 1.0, (9, 0))


@cache
def _traced(knobs: TraceKnobs = KNOBS, micro_batch: int = 2) -> Workload:
    spec = Spec.load({
        "model": {"name": "pythia-14m"}, "data": {"sequence_length": 128},
        "training": {"precision": "bf16-mixed", "micro_batch": 2}, "hardware": {"gpu": "h200-sxm"},
    })  # fmt: skip
    return trace(spec.model, spec.data, knobs, micro_batch)


def _names(workload: Workload, segment: str) -> list[str]:
    return [workload.calls[index].name for index in workload.calls_in(segment)]


def test_pythia_14m_has_14_067_712_parameters_and_a_gradient_for_each() -> None:
    workload = _traced()
    assert workload.parameter_count == workload.trainable_count == 14_067_712  # as the published model counts
    ready = (workload.segments["micro_step"].codes == GRADIENT).sum()
    assert ready == len(workload.parameters)
    assert workload.bytes_of("gradients") == 4 * 14_067_712


def test_every_layer_runs_fused_attention_once_each_way() -> None:
    names = _names(_traced(), "micro_step")
    assert names.count("rigplan.attention_forward.default") == 6
    assert names.count("rigplan.attention_backward.default") == 6


def test_checkpointing_runs_the_forward_of_each_layer_again() -> None:
    names = _names(_traced(replace(KNOBS, checkpointing="full")), "micro_step")
    assert names.count("rigplan.attention_forward.default") == 12


def test_selective_checkpointing_does_not_run_attention_again() -> None:
    names = _names(_traced(replace(KNOBS, checkpointing="selective")), "micro_step")
    assert names.count("rigplan.attention_forward.default") == 6
    assert names.count("addmm.default") == _names(_traced(), "micro_step").count("addmm.default")


def test_states_are_born_in_the_first_step_only() -> None:
    workload = _traced()
    assert workload.bytes_of("optimizer") >= 8 * 14_067_712
    assert "zeros_like.default" not in _names(workload, "optimizer")


@pytest.mark.parametrize("implementation", ["foreach", "fused", "for-loop"])
def test_the_step_is_that_of_the_implementation(implementation: str) -> None:
    names = _names(_traced(replace(KNOBS, optimizer_implementation=implementation)), "optimizer")
    foreach, fused, loop = "_foreach_addcdiv_.ScalarList", "_fused_adamw_.default", "addcdiv_.default"
    assert {"foreach": foreach, "fused": fused, "for-loop": loop}[implementation] in names


def test_bf16_halves_weights_and_gradients() -> None:
    mixed, pure = _traced(), _traced(replace(KNOBS, precision="bf16"))
    assert 2 * pure.bytes_of("weights") == mixed.bytes_of("weights")
    assert 2 * pure.bytes_of("gradients") == mixed.bytes_of("gradients")


def test_an_evaluation_runs_each_layer_once_without_gradients_or_dropout_and_leaves_nothing() -> None:
    workload = _traced()
    names = _names(workload, "evaluation")
    assert names.count("rigplan.attention_forward.default") == 6
    assert not any("backward" in name or "dropout" in name for name in names)
    events = workload.segments["evaluation"]
    assert set(events.values[events.codes == ALLOCATE].tolist()) == set(events.values[events.codes == FREE].tolist())


def test_an_evaluation_keeps_the_logits_and_not_the_activations() -> None:
    peaks = replay(_traced(), Scratch((), lambda _: ())).peaks
    logits = 2 * 128 * 50_304 * 4  # the bf16 logits that are returned, and less than their fp32 copy in the loss
    states = 12 * 14_067_712  # fp32 weights and two moments
    assert states + logits / 2 < peaks["evaluation"] < peaks["forward"]
