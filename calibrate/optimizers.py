"""The optimizer that a spec names, as torch (or the usual package) implements it, over the parameters that train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch

from catalog.errors import RigplanError

LEARNING_RATE = 1e-5  # small: a measured run must stay finite, and its speed does not depend on it
MOMENTUM = 0.9

# What each implementation asks of torch. None of them leaves the choice to torch, which differs by device.
IMPLEMENTATIONS: dict[str, dict[str, Any]] = {
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "for-loop": {"foreach": False},
}


class Several:
    """Optimizers that step together, one for each kind of parameter."""

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        self.parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)


AnyOptimizer = torch.optim.Optimizer | Several


def build(name: str, implementation: str, module: torch.nn.Module) -> AnyOptimizer:
    """The optimizer `name` over the trainable parameters of `module`; RigplanError where it cannot be had here."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trainable:
        raise RigplanError("the model has no parameter that trains: nothing to step")
    return _BUILDERS[name](module, trainable, IMPLEMENTATIONS[implementation])


def hidden_matrices(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The matrices that Muon steps: two dimensions, and neither an embedding nor the output head."""
    outside = {id(layer.weight) for layer in module.modules() if isinstance(layer, torch.nn.Embedding)}
    head = getattr(module, "get_output_embeddings", lambda: None)()
    outside |= {id(parameter) for parameter in head.parameters()} if head is not None else set()
    chosen = (parameter for parameter in module.parameters() if parameter.ndim == 2 and parameter.requires_grad)
    return [parameter for parameter in chosen if id(parameter) not in outside]


def _torch(kind: str, **settings: Any) -> Callable[..., AnyOptimizer]:
    def make(_: torch.nn.Module, trainable: list[torch.nn.Parameter], how: dict[str, Any]) -> AnyOptimizer:
        made: AnyOptimizer = getattr(torch.optim, kind)(trainable, lr=LEARNING_RATE, **settings, **how)
        return made

    return make


def _adafactor(_: torch.nn.Module, trainable: list[torch.nn.Parameter], how: dict[str, Any]) -> AnyOptimizer:
    if "fused" in how:
        raise RigplanError("unsupported: torch has no fused adafactor; use optimizer_implementation foreach")
    return torch.optim.Adafactor(trainable, lr=LEARNING_RATE, **how)


def _muon(module: torch.nn.Module, trainable: list[torch.nn.Parameter], how: dict[str, Any]) -> AnyOptimizer:
    if not hasattr(torch.optim, "Muon"):
        raise RigplanError(f"unsupported: torch {torch.__version__} has no Muon; use torch 2.9 or later")
    matrices = hidden_matrices(module)
    if not matrices:
        raise RigplanError("unsupported: muon needs matrices outside embeddings and head, and the model has none")
    muon = torch.optim.Muon(matrices, lr=LEARNING_RATE)
    rest = _without(trainable, matrices)
    return Several([muon, torch.optim.AdamW(rest, lr=LEARNING_RATE, **how)]) if rest else muon


def _without(parameters: Iterable[torch.nn.Parameter], taken: list[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    ids = {id(parameter) for parameter in taken}
    return [parameter for parameter in parameters if id(parameter) not in ids]


def _package(package: str, kind: str) -> Callable[..., AnyOptimizer]:
    def make(_: torch.nn.Module, trainable: list[torch.nn.Parameter], __: dict[str, Any]) -> AnyOptimizer:
        try:
            made: AnyOptimizer = getattr(import_module(package), kind)(trainable, lr=LEARNING_RATE)
        except (ImportError, RuntimeError) as error:
            raise RigplanError(f"unsupported: {kind} needs the package {package} ({error}); install it") from error
        return made

    return make


_BUILDERS: dict[str, Callable[..., AnyOptimizer]] = {
    "adamw": _torch("AdamW"),
    "adam": _torch("Adam"),
    "sgd": _torch("SGD", momentum=MOMENTUM),
    "adafactor": _adafactor,
    "muon": _muon,
    "lion": _package("lion_pytorch", "Lion"),
    "adamw-8bit": _package("bitsandbytes.optim", "AdamW8bit"),
}
