"""The optimizer of a spec for real steps: what planner.optimizers builds, with the kernels of the usual packages."""

from __future__ import annotations

import torch

from planner.optimizers import AnyOptimizer, Several, build_optimizer, hidden_matrices

__all__ = ["AnyOptimizer", "Several", "build", "hidden_matrices"]


def build(name: str, implementation: str, module: torch.nn.Module) -> AnyOptimizer:
    """The optimizer `name` over the trainable parameters of `module`; RigplanError where it cannot be had here."""
    return build_optimizer(name, implementation, module, real=True)
