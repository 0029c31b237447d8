"""A word-level LSTM language model: three layers of 1,500 units with dropout, 512 tokens a sample."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, WIDTH, LAYERS, LENGTH = 33_278, 1500, 3, 512  # the vocabulary of WikiText-2


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, LAYERS, dropout=0.2, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.lstm(self.dropout(self.words(ids[:, :-1])))
        return F.cross_entropy(self.head(self.dropout(states)).flatten(0, 1), ids[:, 1:].flatten())


def make(batch_size: int) -> tuple[nn.Module, dict[str, Tensor]]:
    return LanguageModel(), {"ids": torch.randint(VOCABULARY, (batch_size, LENGTH + 1))}
