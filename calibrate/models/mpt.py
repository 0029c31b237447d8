"""MPT as llm-foundry's benchmarks train it: fused causal attention, learned positions, biases, tied embedding.

Its kernel is flash attention's, before cuDNN had one for Hopper.

`mpt_LAYERS_WIDTH_HEADS_LENGTH(batch_size)` makes each size; 12, 768, 12 and 2048 give the 125,311,488 parameters that
its table has for MPT-125m.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from planner import fused_ops  # noqa: F401  registers flash attention without a GPU

VOCABULARY, WIDENING = 50368, 4
Made = tuple[nn.Module, dict[str, Tensor]]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = (nn.LayerNorm(width) for _ in range(2))
        self.packed = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, WIDENING * width)
        self.down = nn.Linear(WIDENING * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        parts = self.packed(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.view(shape).transpose(1, 2) for part in parts)
        seen, _ = torch.ops.rigplan.attention_forward(query, key, value, None, 0.0, True, "flash")
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class Mpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))


def _make(layers: int, width: int, heads: int, length: int, batch_size: int) -> Made:
    tokens = torch.zeros(batch_size, length, dtype=torch.long)
    return Mpt(layers, width, heads, length), {"tokens": tokens, "labels": tokens}


def __getattr__(name: str) -> Callable[[int], Made]:
    found = re.fullmatch(r"mpt_(\d+)_(\d+)_(\d+)_(\d+)", name)
    if found is None:
        raise AttributeError(name)
    return functools.partial(_make, *map(int, found.groups()))
