"""Activation checkpointing, as transformers and torch do it: non-reentrant, one checkpoint a block."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from catalog.errors import RigplanError

# What selective checkpointing keeps: the results of matrix products and attention; the rest is computed again.
KEPT = (
    "mm.default",
    "addmm.default",
    "bmm.default",
    "baddbmm.default",
    "convolution.default",
    "attention_forward.default",
)
_KEPT_ON_CUDA = (
    "_scaled_dot_product_flash_attention.default",
    "_scaled_dot_product_efficient_attention.default",
    "_scaled_dot_product_cudnn_attention.default",
)


def apply(module: torch.nn.Module, mode: str, *, own: bool = False) -> None:
    """Make `module` recompute its blocks in backward: `full` all of a block, `selective` all but matmuls and attention.

    Models of transformers that support it use their own `gradient_checkpointing`; any other module has every
    repeated block (the items of its ModuleLists and Sequentials) wrapped, and with `own` those of transformers too.
    Raises RigplanError when there is none.
    """
    if mode == "none":
        return
    arguments: dict[str, Any] = {"use_reentrant": False}
    if mode == "selective":
        arguments["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _keep)
    if getattr(module, "supports_gradient_checkpointing", False) and not own:
        _enable(module, arguments)
        return
    found = blocks(module)
    if not found:
        raise RigplanError("checkpointing: the module has no repeated blocks to checkpoint; use checkpointing: none")
    for block in found:
        block.forward = functools.partial(checkpoint, block.forward, **arguments)


def _enable(module: Any, arguments: dict[str, Any]) -> None:
    """transformers' own switch, by its newer name where it has one; an adapter's wrapper passes both on."""
    if hasattr(module, "activation_checkpointing_enable"):
        module.activation_checkpointing_enable(activation_checkpointing_kwargs=arguments)
    else:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs=arguments)


def _keep(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    name = str(operator).partition(".")[2]
    return CheckpointPolicy.MUST_SAVE if name in KEPT or name in _KEPT_ON_CUDA else CheckpointPolicy.PREFER_RECOMPUTE


def blocks(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The outermost repeated modules: items of a list that are of one class and have parameters of their own."""
    if isinstance(module, torch.nn.ModuleList | torch.nn.Sequential):
        items = [
            item
            for item in module
            if next(item.parameters(), None) is not None and next(item.children(), None) is not None
        ]
        if len(items) > 1 and len({type(item) for item in items}) == 1:
            return items
    return [block for child in module.children() for block in blocks(child)]
