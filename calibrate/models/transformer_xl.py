"""Transformer-XL as DeepLearningExamples train it on WikiText-103: relative attention over a memory as long as the
segment, adaptive softmax. Sizes as in its configs: 54,599,680 (base) and 245,532,672 (large) non-embedding parameters.

The rare words' clusters see as many tokens as their shares of WikiText-103 have, so that shapes do not hang on data.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

CUTOFFS = (0, 19997, 39997, 199997, 267735)
SHARES = (1.0, 0.05, 0.03, 0.005)  # of tokens, by cluster: what the words beyond each cutoff make up
DROPOUT = 0.1
Made = tuple[nn.Module, dict[str, Tensor]]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, head_size: int) -> None:
        super().__init__()
        self.heads, self.head_size = heads, head_size
        self.qkv = nn.Linear(width, 3 * heads * head_size, bias=False)
        self.relative = nn.Linear(width, heads * head_size, bias=False)
        self.out = nn.Linear(heads * head_size, width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.content_bias = nn.Parameter(torch.zeros(heads, head_size))
        self.place_bias = nn.Parameter(torch.zeros(heads, head_size))

    def forward(self, x: Tensor, places: Tensor, mask: Tensor, memory: Tensor) -> Tensor:
        length, batch, _ = x.shape
        together = torch.cat([memory, x], 0)
        query, key, value = self.qkv(together).chunk(3, dim=-1)
        sizes = (batch * self.heads, self.head_size)
        query = query[-length:].view(length, batch, self.heads, self.head_size)
        key, value = (part.reshape(len(together), *sizes) for part in (key, value))
        relative = self.relative(places).view(-1, self.heads, self.head_size)
        content = (query + self.content_bias).reshape(length, *sizes)
        place = query + self.place_bias
        scores = torch.bmm(content.transpose(0, 1), key.permute(1, 2, 0)).view(batch, self.heads, length, -1)
        shifted = _shift(torch.einsum("ibnd,jnd->bnij", place, relative))
        scores = ((scores + shifted) * self.head_size**-0.5).masked_fill(mask, -65504.0)
        weights = functional.dropout(functional.softmax(scores, dim=-1), DROPOUT)
        mixed = torch.bmm(weights.flatten(0, 1), value.transpose(0, 1))
        mixed = mixed.view(batch, self.heads, length, self.head_size).permute(2, 0, 1, 3).reshape(length, batch, -1)
        return self.norm(x + functional.dropout(self.out(mixed), DROPOUT))


def _shift(scores: Tensor) -> Tensor:
    """Row i moves by i: scores by distance become scores by place."""
    batch, heads, rows, columns = scores.shape
    padded = functional.pad(scores, (1, 0)).view(batch, heads, columns + 1, rows)
    return padded[:, :, 1:].view(batch, heads, rows, columns)


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.into, self.out, self.norm = nn.Linear(width, inner), nn.Linear(inner, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.dropout(functional.relu(self.into(x)), DROPOUT)
        return self.norm(x + functional.dropout(self.out(inner), DROPOUT))


class TransformerXl(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, inner: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.tokens = nn.Embedding(CUTOFFS[-1], width)
        self.bias = nn.Parameter(torch.zeros(CUTOFFS[-1]))
        self.clusters = nn.Linear(width, len(CUTOFFS) - 2)
        self.attention = nn.ModuleList(Attention(width, heads, width // heads) for _ in range(layers))
        self.feed_forward = nn.ModuleList(FeedForward(width, inner) for _ in range(layers))

    def forward(self, tokens: Tensor, labels: Tensor, places: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        x = functional.dropout(self.tokens(tokens.t()), DROPOUT)
        for number, (attention, feed_forward) in enumerate(zip(self.attention, self.feed_forward, strict=True)):
            x = feed_forward(attention(x, places, mask, memory[number]))
        x = functional.dropout(x, DROPOUT).flatten(0, 1)
        total = x.new_zeros(())
        for low, high, share in zip(CUTOFFS[:-1], CUTOFFS[1:], SHARES, strict=True):
            rows = max(1, round(share * self.length)) * tokens.shape[0]
            scores = functional.linear(x[:rows], self.tokens.weight[low:high], self.bias[low:high])
            if low == 0:
                scores = torch.cat([scores, self.clusters(x)], dim=1)
            total = total - functional.log_softmax(scores, dim=1).gather(1, labels.t().reshape(-1, 1)[:rows]).sum()
        return total / len(x)


def _size(layers: int, width: int, heads: int, inner: int, length: int) -> Callable[[int], Made]:
    def make(batch_size: int) -> Made:
        tokens = torch.zeros(batch_size, length, dtype=torch.long)
        given = {
            "tokens": tokens,
            "labels": tokens,
            "places": torch.zeros(2 * length, width),
            "memory": torch.zeros(layers, length, batch_size, width),
            "mask": torch.ones(length, 2 * length, dtype=torch.bool),
        }
        return TransformerXl(layers, width, heads, inner, length), given

    return make


base = _size(16, 512, 8, 2048, 192)
large = _size(18, 1024, 16, 4096, 256)
