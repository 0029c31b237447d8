"""Diffusion transformers (DiT-L/2 and XL/2, Peebles and Xie 2023) on latents of 32 x 32, with adaptive layer norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HEADS = 16
SIDE, PATCH, CHANNELS = 32, 2, 4
CLASSES, STEPS = 1000, 1000
PATCHES = (SIDE // PATCH) ** 2


class Block(nn.Module):
    """Attention and MLP, each shifted, scaled and gated by the condition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(condition).unsqueeze(1).chunk(6, dim=-1)
        x = x + gate1 * self.attend(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width))


class DiT(nn.Module):
    """Predicts the noise in a latent at a diffusion step."""

    def __init__(self, width: int = 1024, depth: int = 24) -> None:
        super().__init__()
        self.patches = nn.Conv2d(CHANNELS, width, PATCH, stride=PATCH)
        self.positions = nn.Parameter(torch.zeros(1, PATCHES, width))
        self.steps = nn.Embedding(STEPS, width)
        self.classes = nn.Embedding(CLASSES, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.leave = nn.Linear(width, PATCH * PATCH * CHANNELS)

    def forward(self, latents: Tensor, noise: Tensor, step: Tensor, label: Tensor) -> Tensor:
        x = self.patches(latents + noise).flatten(2).transpose(1, 2) + self.positions
        condition = self.steps(step) + self.classes(label)
        for block in self.blocks:
            x = block(x, condition)
        grid = SIDE // PATCH
        x = self.leave(self.norm(x)).view(-1, grid, grid, PATCH, PATCH, CHANNELS)
        return F.mse_loss(x.permute(0, 5, 1, 3, 2, 4).reshape(latents.shape), noise)


def make(batch_size: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """DiT-L/2."""
    return DiT(), _inputs(batch_size)


def make_xl(batch_size: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """DiT-XL/2."""
    return DiT(width=1152, depth=28), _inputs(batch_size)


def _inputs(batch_size: int) -> dict[str, Tensor]:
    shape = (batch_size, CHANNELS, SIDE, SIDE)
    return {
        "latents": torch.randn(shape),
        "noise": torch.randn(shape),
        "step": torch.randint(STEPS, (batch_size,)),
        "label": torch.randint(CLASSES, (batch_size,)),
    }
