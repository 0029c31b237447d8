"""GPT as Megatron-LM trains it: attention written out, its scale folded into the product, dropout 0.1, tied embedding.

`megatron_LAYERS_WIDTH_HEADS_LENGTH(batch_size)` makes each size, with a vocabulary of 51,200; `tp_plan` cuts it as
Megatron does, but that whole logits reach the loss. Its parameters are in fp16, so that nothing is cast on the way.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDENING, DROPOUT = 51200, 4, 0.1
Made = tuple[nn.Module, dict[str, Tensor]]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_size = width // heads
        self.before_attention, self.before_mlp = (nn.LayerNorm(width) for _ in range(2))
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, WIDENING * width)
        self.down = nn.Linear(WIDENING * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + functional.dropout(self.out(self._attended(self.before_attention(x))), DROPOUT)
        hidden = functional.gelu(self.up(self.before_mlp(x)), approximate="tanh")
        return x + functional.dropout(self.down(hidden), DROPOUT)

    def _attended(self, x: Tensor) -> Tensor:
        """Scores of all queries by keys are written out; the mask is the softmax kernel's own work."""
        batch, length, _ = x.shape
        query, key, value = (
            part(x).view(batch, length, -1, self.head_size).transpose(1, 2).flatten(0, 1)
            for part in (self.query, self.key, self.value)
        )
        scores = torch.baddbmm(query.new_empty(1), query, key.transpose(1, 2), beta=0.0, alpha=self.head_size**-0.5)
        kept = functional.dropout(scores.softmax(-1), DROPOUT)
        seen = torch.bmm(kept, value).view(batch, -1, length, self.head_size)
        return seen.transpose(1, 2).reshape(batch, length, -1)


class Megatron(nn.Module):
    tp_plan: ClassVar = {
        "tokens": "embedding_rowwise",
        **{f"blocks.*.{name}": "colwise" for name in ("query", "key", "value", "up")},
        **{f"blocks.*.{name}": "rowwise" for name in ("out", "down")},
        "head": "colwise_gather_output",
    }

    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        x = functional.dropout(x, DROPOUT)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.float().view(-1, VOCABULARY), labels.view(-1))


def _make(layers: int, width: int, heads: int, length: int, batch_size: int) -> Made:
    tokens = torch.zeros(batch_size, length, dtype=torch.long)
    return Megatron(layers, width, heads, length), {"tokens": tokens, "labels": tokens}


def __getattr__(name: str) -> Callable[[int], Made]:
    found = re.fullmatch(r"megatron_(\d+)_(\d+)_(\d+)_(\d+)", name)
    if found is None:
        raise AttributeError(name)
    return functools.partial(_make, *map(int, found.groups()))
