"""A U-Net for images of 64 x 64 with group norm and attention at the bottom, trained to predict noise."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTHS = (128, 256, 384, 512)
IMAGE = 64
GROUPS = 32


class Block(nn.Module):
    """Two normalised convolutions around a residual."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(GROUPS, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(GROUPS, outside), nn.SiLU(), nn.Conv2d(outside, outside, 3, padding=1))
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) + self.skip(x)


class Attention(nn.Module):
    """Self-attention over the pixels of a small map."""

    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(GROUPS, width)
        self.qkv = nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, length = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, 3, self.heads, width // self.heads, height * length)
        q, k, v = qkv.transpose(-1, -2).unbind(1)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(batch, width, height, length)
        return x + self.out(mixed)


class UNet(nn.Module):
    """Down to an eighth of the side and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, WIDTHS[0], 3, padding=1)
        pairs = list(pairwise(WIDTHS))
        self.down = nn.ModuleList(Block(wide, wide) for wide in WIDTHS[:-1])
        self.shrink = nn.ModuleList(nn.Conv2d(wide, wider, 3, stride=2, padding=1) for wide, wider in pairs)
        self.middle = nn.Sequential(Block(WIDTHS[-1], WIDTHS[-1]), Attention(WIDTHS[-1]), Block(WIDTHS[-1], WIDTHS[-1]))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(wider, wide, 2, stride=2) for wide, wider in reversed(pairs))
        self.up = nn.ModuleList(Block(2 * wide, wide) for wide, _ in reversed(pairs))
        self.leave = nn.Sequential(nn.GroupNorm(GROUPS, WIDTHS[0]), nn.SiLU(), nn.Conv2d(WIDTHS[0], 3, 3, padding=1))

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        x = self.enter(images + noise)
        kept = []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x)
            kept.append(x)
            x = shrink(x)
        x = self.middle(x)
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([grow(x), kept.pop()], dim=1))
        return F.mse_loss(self.leave(x), noise)


def make(batch_size: int) -> tuple[nn.Module, dict[str, Tensor]]:
    shape = (batch_size, 3, IMAGE, IMAGE)
    return UNet(), {"images": torch.randn(shape), "noise": torch.randn(shape)}
