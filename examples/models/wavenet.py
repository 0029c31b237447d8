"""A WaveNet-like stack of gated dilated 1-d convolutions over 16,000 samples of audio in 256 levels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEVELS, SAMPLES = 256, 16_000
RESIDUAL, SKIP = 128, 256
CYCLES, DEPTH = 3, 10  # dilations 1, 2, 4, ... 512, three times over


class Layer(nn.Module):
    """One gated convolution that sees only the past."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.gated = nn.Conv1d(RESIDUAL, 2 * RESIDUAL, 2, dilation=dilation)
        self.residual = nn.Conv1d(RESIDUAL, RESIDUAL, 1)
        self.skip = nn.Conv1d(RESIDUAL, SKIP, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        signal, gate = self.gated(F.pad(x, (self.dilation, 0))).chunk(2, dim=1)
        mixed = torch.tanh(signal) * torch.sigmoid(gate)
        return x + self.residual(mixed), self.skip(mixed)


class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.Embedding(LEVELS, RESIDUAL)
        self.layers = nn.ModuleList(Layer(2**power) for _ in range(CYCLES) for power in range(DEPTH))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(SKIP, SKIP, 1), nn.ReLU(), nn.Conv1d(SKIP, LEVELS, 1))

    def forward(self, audio: Tensor) -> Tensor:
        x = self.levels(audio[:, :-1]).transpose(1, 2)
        total: Tensor | None = None
        for layer in self.layers:
            x, skip = layer(x)
            total = skip if total is None else total + skip
        return F.cross_entropy(self.head(total), audio[:, 1:])


def make(batch_size: int) -> tuple[nn.Module, dict[str, Tensor]]:
    return WaveNet(), {"audio": torch.randint(LEVELS, (batch_size, SAMPLES + 1))}
