"""Languini Kitchen's GPT in its sizes: attention and GELU written out, untied embeddings, biases, no dropout.

Its throughput sweep compiles the model and leaves the loss to eager code, which holds the logits through the backward.
Operators stand as its `projects/gpt/lib.py` has them: products by einsum, a mask kept in fp32 for 4,096 positions, and
a cube by `torch.pow`, which autocast computes in fp32 and so makes the rest of the GELU fp32 too.
Sizes and parameter counts as in its throughput sweep: 27,549,696 (mini) to 1,478,160,384 (xl).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, LENGTH = 16384, 512
MASK_LENGTH = 4096
Made = tuple[nn.Module, dict[str, Tensor]]


class Attention(nn.Module):
    mask: Tensor

    def __init__(self, width: int, heads: int, head_size: int) -> None:
        super().__init__()
        self.heads, self.head_size = heads, head_size
        self.query = nn.Linear(width, heads * head_size)
        self.key = nn.Linear(width, heads * head_size)
        self.value = nn.Linear(width, heads * head_size)
        self.out = nn.Linear(heads * head_size, width)
        mask = torch.tril(torch.ones(MASK_LENGTH, MASK_LENGTH)).view(1, 1, MASK_LENGTH, MASK_LENGTH)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        shape = (batch, length, self.heads, self.head_size)
        query, key, value = (layer(x).view(shape).transpose(1, 2) for layer in (self.query, self.key, self.value))
        scores = torch.einsum("bhid,bhjd->bhij", query, key) * self.head_size**-0.5
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        mixed = torch.einsum("bhjd,bhij->bhid", value, functional.softmax(scores, dim=-1))
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class Gelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, head_size: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, head_size)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), Gelu(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, head_size: int) -> None:
        super().__init__()
        self.width = width
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads, head_size) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.tokens(tokens) * math.sqrt(self.width) + self.positions(torch.arange(LENGTH, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return {"loss": _loss(logits, labels), "logits": logits}


@torch.compiler.disable
def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))


def _size(layers: int, width: int, heads: int, head_size: int) -> Callable[[int], Made]:
    def make(batch_size: int) -> Made:
        tokens = torch.zeros(batch_size, LENGTH, dtype=torch.long)
        return Gpt(layers, width, heads, head_size), {"tokens": tokens, "labels": tokens}

    return make


mini = _size(4, 512, 8, 32)
tiny = _size(4, 768, 12, 64)
small = _size(12, 768, 12, 64)
medium = _size(24, 1024, 16, 64)
large = _size(24, 1536, 16, 96)
xl = _size(24, 2048, 24, 128)
