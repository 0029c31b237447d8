"""Tiny models of every task really train: one forward and backward on the cpu with the builder's own inputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from planner import models

ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SEQ2SEQ = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
SPEECH = {
    **ENCODER,
    "vocab_size": 32,
    "conv_dim": [16] * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "codevector_dim": 16,
    "proj_codevector_dim": 16,
    "num_codevectors_per_group": 8,
    "num_negatives": 4,
}
VOCAB = {"vocab_size": 100}
IMAGE = {"image_size": 32, "patch_size": 8, "num_labels": 10}
TOWERS = {"text_config": {**ENCODER, **VOCAB, "eos_token_id": 99}, "vision_config": {**ENCODER, **IMAGE}}

CASES: list[tuple[str, dict[str, Any]]] = [
    ("causal-lm", {"model_type": "gpt_neox", **ENCODER, **VOCAB}),
    ("causal-lm", {"model_type": "llama", **ENCODER, **VOCAB, "num_key_value_heads": 1}),
    ("causal-lm", {"model_type": "gemma2", **ENCODER, **VOCAB, "num_key_value_heads": 1, "head_dim": 16}),
    ("causal-lm", {"model_type": "mixtral", **ENCODER, **VOCAB, "num_key_value_heads": 1, "num_local_experts": 4}),
    ("causal-lm", {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, **VOCAB}),
    ("masked-lm", {"model_type": "bert", **ENCODER, **VOCAB}),
    ("masked-lm", {"model_type": "roberta", **ENCODER, **VOCAB, "max_position_embeddings": 66}),
    ("masked-lm", {"model_type": "deberta-v2", **ENCODER, **VOCAB, "relative_attention": True}),
    (
        "seq2seq-lm",
        {"model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 2, **VOCAB},
    ),
    ("seq2seq-lm", {"model_type": "bart", **SEQ2SEQ, **VOCAB}),
    (
        "seq2seq-lm",
        {"model_type": "marian", **SEQ2SEQ, **VOCAB, "pad_token_id": 99, "decoder_start_token_id": 99},
    ),
    ("sequence-classification", {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, **VOCAB}),
    ("image-classification", {"model_type": "vit", **ENCODER, **IMAGE}),
    ("image-classification", {"model_type": "resnet", "hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8}),
    ("semantic-segmentation", {"model_type": "segformer", "num_labels": 5, "decoder_hidden_size": 16}),
    ("video-classification", {"model_type": "videomae", **ENCODER, **IMAGE, "num_frames": 4}),
    ("contrastive", {"model_type": "clip", **TOWERS, "projection_dim": 16}),
    ("speech-seq2seq", {"model_type": "whisper", **SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 20}),
    ("ctc", {"model_type": "wav2vec2", **SPEECH}),
    ("pretraining", {"model_type": "wav2vec2", **SPEECH}),
    ("pretraining", {"model_type": "bert", **ENCODER, **VOCAB}),
    ("pretraining", {"model_type": "electra", **ENCODER, **VOCAB, "embedding_size": 16}),
    ("pretraining", {"model_type": "vit_mae", **ENCODER, **IMAGE}),
    ("pretraining", {"model_type": "videomae", **ENCODER, **IMAGE, "num_frames": 4}),
]
LENGTHS = {"wav2vec2": 8000, "whisper": 40}


@pytest.mark.parametrize(
    ("task", "config"), CASES, ids=lambda value: value if isinstance(value, str) else value["model_type"]
)
def test_a_tiny_model_trains_on_the_inputs_it_is_given(task: str, config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    spec: Any = SimpleNamespace(name=None, config=config, module=None, task=task, attention=("sdpa",), lora=None)
    length = LENGTHS.get(config["model_type"], 24)
    data: Any = SimpleNamespace(sequence_length=length, target_length=6, image_size=32, total=None)
    built = models.build(spec, data, device="cpu")
    assert built.task == task
    loss = built.module(**built.inputs(2)).loss
    assert loss.ndim == 0
    assert torch.isfinite(loss)
    loss.backward()
    learned = [parameter.grad for parameter in built.module.parameters() if parameter.grad is not None]
    assert sum(bool(gradient.abs().sum() > 0) for gradient in learned) > 5


def test_every_task_of_a_transformers_model_is_tried() -> None:
    assert {task for task, _ in CASES} == set(models.AUTO)


def test_inputs_are_the_same_at_every_call_and_labels_are_legal() -> None:
    config = {"model_type": "bert", **ENCODER, **VOCAB}
    spec: Any = SimpleNamespace(name=None, config=config, module=None, task=None, attention="eager", lora=None)
    data: Any = SimpleNamespace(sequence_length=28, target_length=None, image_size=None, total=None)
    built = models.build(spec, data, device="cpu", dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in built.module.parameters()} == {torch.bfloat16}
    first, second = built.inputs(3), built.inputs(3)
    assert torch.equal(first["input_ids"], second["input_ids"])
    assert not bool((first["input_ids"] == 0).any())  # the padding id
    assert int((first["labels"] >= 0).sum()) == 3 * 28 // 7
    assert int(first["labels"].max()) < 100
