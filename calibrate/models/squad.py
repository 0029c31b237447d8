"""BERT as NVIDIA's DeepLearningExamples fine-tune it on SQuAD: questions padded to 384 tokens, so that a mask is added
to the scores of every layer, attention written out, and a start and an end to find.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForQuestionAnswering

LENGTH = 384
BASE: dict[str, Any] = {"attn_implementation": "eager"}
LARGE = {**BASE, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
Made = tuple[BertForQuestionAnswering, dict[str, Tensor]]


def bert_base(batch_size: int) -> Made:
    return _made(batch_size, **BASE)


def bert_large(batch_size: int) -> Made:
    return _made(batch_size, **LARGE)


def _made(batch_size: int, **sizes: Any) -> Made:
    module = BertForQuestionAnswering(BertConfig(**sizes))
    tokens = torch.ones(batch_size, LENGTH, dtype=torch.long)
    mask = tokens.clone()
    mask[:, -1] = 0  # a mask that hides nothing would not be made
    place = torch.zeros(batch_size, dtype=torch.long)
    given = {"input_ids": tokens, "token_type_ids": torch.zeros_like(tokens), "attention_mask": mask}
    return module, {**given, "start_positions": place, "end_positions": place}
