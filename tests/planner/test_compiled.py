"""Compiled: what torch.compile makes of a model, traced without a GPU through dynamo, AOTAutograd and Inductor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from catalog.errors import RigplanError
from planner import estimate
from planner.cache import TraceKnobs, Workloads
from planner.call import Call, TensorSpec
from planner.evaluate import not_possible
from planner.machine import resolve
from planner.memory import Scratch, replay
from planner.operators import describe
from planner.passes import fp8
from planner.spec import Spec
from planner.strategy import HardwareChoice, Strategy
from planner.trace import trace
from planner.workload import ALLOCATE, BY_PROGRAM, CALL, COMPILED, Workload

HIDDEN, INNER, BATCH, LENGTH, VOCABULARY = 64, 256, 2, 128, 512
TINY: dict[str, Any] = {
    "model_type": "gpt_neox", "hidden_size": HIDDEN, "num_attention_heads": 4, "num_hidden_layers": 1,
    "intermediate_size": INNER, "vocab_size": VOCABULARY, "max_position_embeddings": LENGTH,
}  # fmt: skip


def spec(**training: Any) -> Spec:
    return Spec.model_validate(
        {
            "model": {"config": TINY, "task": "causal-lm"},
            "data": {"sequence_length": LENGTH},
            "training": {"micro_batch": BATCH, **training},
            "hardware": {"gpu": "h200-sxm"},
        }
    )


def knobs(*, compiled: bool) -> TraceKnobs:
    return TraceKnobs.of(Strategy(compile=compiled), (9, 0), HardwareChoice("h200-sxm", 1))


@pytest.fixture(scope="module")
def compiled() -> Workload:
    """Kept, as compiling takes the longest here: the answers below are made of it."""
    asked = spec()
    return Workloads(asked.model, asked.data).at(knobs(compiled=True), BATCH)


@pytest.fixture(scope="module")
def eager() -> Workload:
    asked = spec()
    return trace(asked.model, asked.data, knobs(compiled=False), BATCH)


def launches(workload: Workload) -> list[Call]:
    return [workload.calls[index] for index in workload.calls_in("micro_step")]


def test_a_plain_decoder_is_one_graph(compiled: Workload, eager: Workload) -> None:
    assert (compiled.compiled_graphs, eager.compiled_graphs) == (1, 0)


def test_pointwise_chains_and_reductions_become_fewer_kernels(compiled: Workload, eager: Workload) -> None:
    assert len(launches(compiled)) < 0.75 * len(launches(eager))
    names = {call.name for call in launches(compiled)}
    assert not names & {"gelu.default", "gelu_backward.default", "native_layer_norm.default", "_to_copy.default"}


def test_products_and_attention_stay_what_they_were(compiled: Workload, eager: Workload) -> None:
    def shapes(workload: Workload) -> list[tuple[int, ...]]:
        found = [describe(call) for call in launches(workload)]
        return sorted(item.shape[1:4] for item in found if item.kind == "matmul" and item.shape[0] == 1)

    assert shapes(compiled) == shapes(eager)
    attention = [call.name for call in launches(compiled) if "attention" in call.name]
    assert attention == ["rigplan.attention_forward.default", "rigplan.attention_backward.default"]


def test_gelu_reads_its_input_once_and_writes_its_output_once(compiled: Workload) -> None:
    inner = TensorSpec("bf16", (BATCH * LENGTH * INNER,))
    assert any(call.tensors == (inner,) and call.results == (inner,) for call in launches(compiled))


def test_what_backward_needs_is_less_than_eager_keeps(compiled: Workload, eager: Workload) -> None:
    def kept(workload: Workload) -> int:
        events = workload.segments["micro_step"]
        blocks = set(events.values[events.codes == ALLOCATE].tolist())
        return sum(int(workload.block_bytes[block]) for block in blocks)

    assert kept(compiled) < kept(eager)


def test_gradients_are_those_of_eager(compiled: Workload, eager: Workload) -> None:
    sizes = [
        [int(item.block_bytes[parameter.gradient_block]) for parameter in item.parameters if parameter.gradient_block]
        for item in (compiled, eager)
    ]
    assert sizes[0] == sizes[1]


def test_every_kernel_of_a_compiled_step_is_launched_by_a_program(compiled: Workload) -> None:
    events = compiled.segments["micro_step"]
    inside = (events.codes == COMPILED).nonzero()[0]
    calls = (events.codes == CALL).nonzero()[0]
    assert len(inside) == 4  # into the forward and out, into the backward and out
    between = [index for index in calls if inside[0] < index < inside[1] or inside[2] < index < inside[3]]
    assert len(calls) - len(between) <= 2  # the gradient that backward starts from is eager code's


def test_a_second_micro_batch_is_compiled_as_the_first_was(compiled: Workload) -> None:
    asked = spec()
    second = Workloads(asked.model, asked.data).at(knobs(compiled=True), 2 * BATCH)
    assert [call.name for call in launches(second)] == [call.name for call in launches(compiled)]


def test_a_searched_micro_batch_is_the_one_that_is_best_uncompiled() -> None:
    answer = estimate(spec(compile=True, micro_batch="auto", global_batch=2 * BATCH))
    assert answer.strategy.micro_batch == 2 * BATCH
    assert "micro_batch auto: 4, which is best uncompiled" in answer.notes


def test_an_answer_names_the_graphs_and_the_time_to_compile() -> None:
    answer = estimate(spec(compile=True))
    assert any("one graph" in line and "before the first step" in line for line in answer.assumptions)
    assert answer.strategy.compile


def test_gpus_older_than_volta_are_refused_with_the_reason() -> None:
    machine = resolve(HardwareChoice("titan-rtx", 1))
    asked = Strategy(precision="fp16-mixed", compile=True, micro_batch=1)
    assert not_possible(asked, machine) is None
    older = replace(machine.accelerator, compute_capability=(6, 1))
    assert "Volta" in (not_possible(asked, replace(machine, accelerator=older)) or "")


def test_fp8_products_are_scaled_and_cast_first(compiled: Workload) -> None:
    low = fp8.apply(compiled)
    scaled = [call for call in launches(low) if call.name == "_scaled_mm.default"]
    taken = [call for call in launches(compiled) if fp8.factors_of(call)]
    assert len(scaled) == len(taken) > 10
    assert len(launches(low)) == len(launches(compiled)) + 4 * len(taken)
    assert {describe(call).dtype for call in scaled} == {"f8"}
    assert (low.block_bytes == compiled.block_bytes).all()  # weights and activations stay as they are


def test_fp8_leaves_sizes_that_are_no_multiples_of_16(compiled: Workload) -> None:
    odd = Call("mm.default", (TensorSpec("bf16", (64, 50257)), TensorSpec("bf16", (50257, 64))), (), ())
    assert fp8.factors_of(odd) is None


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own, when it is first imported
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_convolution_of_channels_last_images_stays_so_as_cudnn_keeps_it(dtype: torch.dtype) -> None:
    """The program that Inductor wrote for ConvNeXt on an H200 says so of every convolution; a torch without CUDA would
    say contiguous."""
    from planner.compiled.gpu import DEVICE, inductor_for

    with FakeTensorMode(), inductor_for((9, 0)):
        images = torch.empty(4, 64, 16, 16, dtype=dtype, device=DEVICE)
        weight = torch.empty(64, 1, 7, 7, dtype=dtype, device=DEVICE)
        last = images.to(memory_format=torch.channels_last)
        convolve = torch.ops.aten.convolution.default
        given = [convolve(x, weight, None, [1, 1], [3, 3], [1, 1], False, [0, 0], 64) for x in (last, images)]
    assert [result.stride() for result in given] == [(16384, 1, 1024, 64), (16384, 256, 16, 1)]


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_a_graph_that_cannot_be_lowered_is_an_error_not_smaller_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = spec()
    monkeypatch.setattr(
        "planner.wrappers.compiled.lower", lambda *_: (_ for _ in ()).throw(ValueError("no such thing"))
    )
    with pytest.raises(RigplanError, match=r"cannot be compiled \(ValueError\): no such thing; use compile: false"):
        trace(asked.model, asked.data, knobs(compiled=True), BATCH)


def test_an_evaluation_is_a_graph_of_its_own_that_keeps_nothing_for_a_backward(
    compiled: Workload, eager: Workload
) -> None:
    events = compiled.segments["evaluation"]
    assert ((events.codes == COMPILED) & (events.values == BY_PROGRAM)).sum() == 1
    peaks = [replay(item, Scratch((), lambda call: ())).peaks["evaluation"] for item in (compiled, eager)]
    assert peaks[0] <= peaks[1]
