"""The fused head and loss: the same numbers as the plain one, in chunks, and without the memory of the logits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import planner
from catalog.errors import RigplanError
from planner.cache import TraceKnobs
from planner.collectives import Mesh
from planner.memory import Scratch, replay
from planner.operators import describe
from planner.spec import Spec
from planner.trace import trace
from planner.workload import CALL, Workload
from planner.wrappers import fused_loss

EAGER = TraceKnobs("bf16-mixed", "sdpa", "none", "adamw", "foreach", 1.0, (9, 0))
FUSED = replace(EAGER, loss="fused-linear")
MICRO_BATCH, LENGTH, VOCABULARY, HIDDEN = 2, 512, 8192, 512
TOKENS, CHUNK = MICRO_BATCH * LENGTH, 64  # 1,024 tokens over 8,192 / 512 chunks
SMALL = {
    "model_type": "gpt_neox", "hidden_size": HIDDEN, "intermediate_size": HIDDEN, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": VOCABULARY,
}  # fmt: skip
TINY = {"vocab_size": 96, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 32},
    "gemma2": {"intermediate_size": 32, "num_key_value_heads": 1, "head_dim": 8},  # bends its logits by a tanh
    "cohere": {"intermediate_size": 32, "num_key_value_heads": 2},  # scales its logits
    "phi": {"intermediate_size": 32, "resid_pdrop": 0.0},  # a head with a bias
}


def _spec(**training: Any) -> dict[str, Any]:
    return {
        "model": {"config": SMALL, "task": "causal-lm"}, "data": {"sequence_length": LENGTH},
        "hardware": {"gpu": "h200-sxm"},
        "training": {"micro_batch": MICRO_BATCH, **training},
    }  # fmt: skip


@cache
def _traced(knobs: TraceKnobs) -> Workload:
    spec = Spec.load(_spec())
    return trace(spec.model, spec.data, knobs, MICRO_BATCH)


def _peak(knobs: TraceKnobs) -> int:
    """Of forward and backward: the optimizer's step knows nothing of the loss."""
    peaks = replay(_traced(knobs), Scratch((), lambda _: ())).peaks
    return max(peaks["forward"], peaks["backward"])


def _model(kind: str) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(kind, **TINY, **CONFIGS[kind], **ids)
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config).train()
    return model


@pytest.mark.parametrize("kind", CONFIGS)
def test_loss_and_gradients_are_those_of_the_plain_loss(kind: str) -> None:
    plain, fused = _model(kind), _model(kind)
    fused_loss.apply(fused, "fused-linear")
    ids = torch.randint(3, TINY["vocab_size"], (3, 11))
    labels = ids.clone()
    labels[0, 2:5] = -100
    losses = [model(input_ids=ids, labels=labels).loss for model in (plain, fused)]
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-5)
    for loss in losses:
        (loss * 0.5).backward()  # as in accumulation
    for one, two in zip(plain.parameters(), fused.parameters(), strict=True):
        if one.grad is not None:
            assert two.grad is not None
            torch.testing.assert_close(two.grad, one.grad, rtol=1e-3, atol=1e-6)


def test_chunks_are_as_ligers() -> None:
    """The example in its source: 16,384 tokens, a vocabulary of 32,000 and 4,096 hidden make chunks of 2,048."""
    assert fused_loss.chunk_rows(4 * 4096, 4096, 32000) == 2048
    assert fused_loss.chunk_rows(TOKENS, HIDDEN, VOCABULARY) == CHUNK
    assert fused_loss.chunk_rows(TOKENS + 1, HIDDEN, VOCABULARY) == 2 * CHUNK  # the next power of 2
    assert fused_loss.chunk_rows(3, 4096, 1000) == 3  # never more than there are


def test_the_logits_are_never_whole() -> None:
    """Plain, bf16 logits and their fp32 copy are kept until backward, which makes a gradient as large as the latter."""
    logits_bytes = TOKENS * VOCABULARY * (2 + 4)
    assert _peak(EAGER) - _peak(FUSED) >= logits_bytes
    largest = max(spec.elements for call in _traced(FUSED).calls for spec in call.results)
    assert largest == VOCABULARY * HIDDEN  # the head's gradient
    assert largest < TOKENS * VOCABULARY


def test_it_multiplies_as_much_as_the_plain_loss() -> None:
    flop = [sum(describe(call).flop * times for call, times in _counted(knobs)) for knobs in (EAGER, FUSED)]
    assert flop[1] == pytest.approx(flop[0], rel=1e-12)


def _counted(knobs: TraceKnobs) -> list[tuple[Any, int]]:
    workload = _traced(knobs)
    events = workload.segments["micro_step"]
    times = [int(value) for code, value in zip(events.codes, events.values, strict=True) if code == CALL]
    return [(workload.calls[at], times.count(at)) for at in sorted(set(times))]


def test_each_chunk_is_one_kernel_that_reads_the_logits_twice_and_writes_them_once() -> None:
    (kernel,) = [call for call in _traced(FUSED).calls if call.name.startswith("rigplan.cross_entropy")]
    chunk_bytes = CHUNK * VOCABULARY * 2
    found = describe(kernel)
    assert (found.kind, found.shape) == ("softmax", (CHUNK, VOCABULARY, 1))
    assert found.bytes_read == pytest.approx(2 * chunk_bytes, abs=1000)
    assert found.bytes_written == pytest.approx(chunk_bytes, abs=1000)


@pytest.mark.parametrize(
    "changed",
    [{"checkpointing": "full"}, {"precision": "bf16"}, {"mesh": Mesh("fsdp", 2)}, {"optimizer": "adamw-8bit"}],
    ids=str,
)
def test_it_goes_with_the_other_techniques(changed: dict[str, Any]) -> None:
    logits_bytes = TOKENS * VOCABULARY * 4
    assert _peak(replace(EAGER, **changed)) - _peak(replace(FUSED, **changed)) >= logits_bytes


def test_what_cannot_have_it_is_told() -> None:
    with pytest.raises(RigplanError, match="whole head"):
        planner.fits({**_spec(loss="fused-linear", tensor_parallel=2), "hardware": {"gpu": "h200-sxm", "count": 2}})
    with pytest.raises(RigplanError, match="causal language models"):
        planner.fits({**_spec(loss="fused-linear"), "model": {"name": "resnet-18"}, "data": {"image_size": 32}})
    adapted = {"name": "pythia-14m", "lora": {"r": 2, "alpha": 2, "target_modules": ["embed_out", "lm_head"]}}
    with pytest.raises(RigplanError, match="plain head"):
        planner.fits({**_spec(loss="fused-linear"), "model": adapted})
