"""A recommender (DLRM, Naumov et al. 2019): 26 embedding tables, two MLPs, pairwise interactions between."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DENSE, TABLES, WIDTH = 13, 26, 64
ROWS = (1_000_000, 500_000, 100_000, 20_000, 1_000)  # of the tables, in turn


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers with a ReLU between."""
    layers: list[nn.Module] = []
    for inside, outside in pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ROWS[index % len(ROWS)], WIDTH) for index in range(TABLES))
        self.bottom = mlp(DENSE, 512, 256, WIDTH)
        self.top = mlp(WIDTH + (TABLES + 1) * TABLES // 2, 1024, 512, 256, 1)
        self.register_buffer("pairs", torch.tril_indices(TABLES + 1, TABLES + 1, offset=-1))

    def forward(self, dense: Tensor, sparse: Tensor, clicked: Tensor) -> Tensor:
        first = self.bottom(dense)
        features = torch.stack([first, *(table(sparse[:, index]) for index, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        score = self.top(torch.cat([first, products], dim=1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(score, clicked)


def make(batch_size: int) -> tuple[nn.Module, dict[str, Tensor]]:
    sparse = torch.stack([torch.randint(ROWS[index % len(ROWS)], (batch_size,)) for index in range(TABLES)], dim=1)
    return Recommender(), {
        "dense": torch.randn(batch_size, DENSE),
        "sparse": sparse,
        "clicked": torch.randint(2, (batch_size,)).float(),
    }
