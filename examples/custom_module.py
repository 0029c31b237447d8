"""A model of one's own for rigplan: `make(batch_size)` gives the module and one batch of inputs.

`module(**inputs)` returns the scalar loss, or an object with `.loss`. Of the inputs, only the shapes and dtypes matter.
"""

import torch
from torch import Tensor, nn

CHANNELS, CLASSES, LENGTH = 64, 10, 1024


class SignalClassifier(nn.Module):
    """A small convolutional network over one-dimensional signals."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, CHANNELS, kernel_size=7, padding=3),
            nn.GELU(),
            nn.Conv1d(CHANNELS, CHANNELS, kernel_size=7, padding=3),
            nn.GELU(),
        )
        self.head = nn.Linear(CHANNELS, CLASSES)

    def forward(self, signal: Tensor, label: Tensor) -> Tensor:
        pooled = self.features(signal).mean(dim=-1)
        return nn.functional.cross_entropy(self.head(pooled), label)


def make(batch_size: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """The module and a batch of `batch_size` signals with their labels."""
    signal = torch.zeros(batch_size, 1, LENGTH)
    label = torch.zeros(batch_size, dtype=torch.long)
    return SignalClassifier(), {"signal": signal, "label": label}
