"""Optimizers by the name that a spec uses, torch's own where it has one; the same for a trace and for a real run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, TypeVar

import torch

from catalog.errors import RigplanError

Parameters = list[torch.nn.Parameter]
AnyTensor = TypeVar("AnyTensor", bound=torch.Tensor)

LEARNING_RATE = 1e-5  # small: a measured run must stay finite, and neither speed nor memory depends on it
MOMENTUM = 0.9

# What each implementation asks of torch. None of them leaves the choice to torch, which differs by device.
IMPLEMENTATIONS: dict[str, dict[str, Any]] = {
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "for-loop": {"foreach": False},
}
# Optimizers that torch does not have: the package and class of a real run.
PACKAGES = {"lion": ("lion_pytorch", "Lion"), "adamw-8bit": ("bitsandbytes.optim", "AdamW8bit")}


class Several:
    """Optimizers that step together, one for each kind of parameter."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer | Several]) -> None:
        self.parts = parts
        self.param_groups: list[dict[str, Any]] = [group for part in parts for group in part.param_groups]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)


AnyOptimizer = torch.optim.Optimizer | Several


class Lion(torch.optim.Optimizer):
    """Lion (arXiv 2302.06675): one momentum a parameter, a sign for a step; temporaries as in lion-pytorch."""

    def __init__(self, params: Parameters, lr: float = LEARNING_RATE, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum = state["momentum"]
                update = momentum.clone().mul_(first).add(parameter.grad, alpha=1 - first).sign_()
                parameter.add_(update, alpha=-group["lr"])
                momentum.mul_(second).add_(parameter.grad, alpha=1 - second)


class AdamW8bit(torch.optim.Optimizer):
    """bitsandbytes' AdamW8bit as memory sees it: two bytes a parameter, and one fp32 scale a block of 256 and state.

    Tensors under 4096 elements keep fp32 states (bitsandbytes' min_8bit_size). The update is one fused kernel a tensor.
    """

    BLOCK, SMALLEST = 256, 4096

    def __init__(self, params: Parameters, lr: float = LEARNING_RATE) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    small = parameter.numel() < self.SMALLEST
                    for name in ("state1", "state2"):
                        state[name] = torch.zeros_like(parameter, dtype=torch.float32 if small else torch.uint8)
                        if not small:
                            scales = -(-parameter.numel() // self.BLOCK)
                            state[f"absmax_{name}"] = parameter.new_zeros(scales, dtype=torch.float32)
                parameter.addcdiv_(parameter.grad, parameter.grad)


def build_optimizer(name: str, implementation: str, module: torch.nn.Module, *, real: bool = False) -> AnyOptimizer:
    """The optimizer `name` over the trainable parameters of `module`; RigplanError where it cannot be had.

    `real`: for steps on a GPU, by the package that users take (see PACKAGES); a trace needs no more than its shapes.
    """
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trainable:
        raise RigplanError("the model has no parameter that trains: nothing to step")
    if real and name in PACKAGES:
        return _packaged(*PACKAGES[name], trainable)
    parts = [_BUILDERS[name](module, group, IMPLEMENTATIONS[implementation]) for group in alike(trainable)]
    return parts[0] if len(parts) == 1 else Several(parts)


def alike(tensors: Sequence[AnyTensor]) -> list[list[AnyTensor]]:
    """The tensors by what one foreach kernel may take together: those spread over one mesh, and those of one rank."""
    groups: dict[Any, list[AnyTensor]] = {}
    for tensor in tensors:
        groups.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return list(groups.values())


def hidden_matrices(module: torch.nn.Module) -> Parameters:
    """The matrices that Muon steps: two dimensions, and neither an embedding nor the output head."""
    outside = {id(layer.weight) for layer in module.modules() if isinstance(layer, torch.nn.Embedding)}
    head = getattr(module, "get_output_embeddings", lambda: None)()
    outside |= {id(parameter) for parameter in head.parameters()} if head is not None else set()
    chosen = (parameter for parameter in module.parameters() if parameter.ndim == 2 and parameter.requires_grad)
    return [parameter for parameter in chosen if id(parameter) not in outside]


@torch.no_grad()
def clip_gradients(parameters: Parameters, max_norm: float) -> None:
    """torch.nn.utils.clip_grad_norm_ as on a GPU: one norm kernel a chunk of tensors, then one scaling in place."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    by_dtype: dict[Any, list[torch.Tensor]] = {}
    for gradient in gradients:
        by_dtype.setdefault((gradient.dtype, getattr(gradient, "device_mesh", None)), []).append(gradient)
    norms = [norm for group in by_dtype.values() for norm in torch._foreach_norm(group, 2.0)]
    totals = [
        torch.linalg.vector_norm(torch.stack([norm.to(norms[0].dtype) for norm in part]), 2.0) for part in alike(norms)
    ]
    total = (
        totals[0] if len(totals) == 1 else torch.linalg.vector_norm(torch.stack([_whole(part) for part in totals]), 2.0)
    )
    coefficient = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for group in by_dtype.values():
        torch._foreach_mul_(group, coefficient.to(group[0].dtype))


def _whole(norm: torch.Tensor) -> torch.Tensor:
    """A norm of all ranks' parts."""
    found: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return found


def _torch(kind: str, **settings: Any) -> Callable[..., AnyOptimizer]:
    def make(_: torch.nn.Module, trainable: Parameters, how: dict[str, Any]) -> AnyOptimizer:
        made: AnyOptimizer = getattr(torch.optim, kind)(trainable, lr=LEARNING_RATE, **settings, **how)
        return made

    return make


def _adafactor(_: torch.nn.Module, trainable: Parameters, how: dict[str, Any]) -> AnyOptimizer:
    if "fused" in how:
        raise RigplanError("unsupported: torch has no fused adafactor; use optimizer_implementation foreach")
    return torch.optim.Adafactor(trainable, lr=LEARNING_RATE, **how)


def _muon(module: torch.nn.Module, trainable: Parameters, how: dict[str, Any]) -> AnyOptimizer:
    """Muon for the hidden matrices, AdamW for the rest: as torch.optim.Muon asks to be used."""
    hidden = hidden_matrices(module)
    if not hidden:
        raise RigplanError("unsupported: muon needs matrices outside embeddings and head, and the model has none")
    matrices = _without(hidden, _without(hidden, trainable))
    if not matrices:
        return torch.optim.AdamW(trainable, lr=LEARNING_RATE, **how)
    muon = torch.optim.Muon(matrices, lr=LEARNING_RATE)
    rest = _without(trainable, matrices)
    return Several([muon, torch.optim.AdamW(rest, lr=LEARNING_RATE, **how)]) if rest else muon


def _without(parameters: Iterable[torch.nn.Parameter], taken: Parameters) -> Parameters:
    ids = {id(parameter) for parameter in taken}
    return [parameter for parameter in parameters if id(parameter) not in ids]


def _packaged(package: str, kind: str, trainable: Parameters) -> AnyOptimizer:
    try:
        made: AnyOptimizer = getattr(import_module(package), kind)(trainable, lr=LEARNING_RATE)
    except (ImportError, RuntimeError) as error:
        raise RigplanError(f"unsupported: {kind} needs the package {package} ({error}); install it") from error
    return made


_BUILDERS: dict[str, Callable[..., AnyOptimizer]] = {
    "adamw": _torch("AdamW"),
    "adam": _torch("Adam"),
    "sgd": _torch("SGD", momentum=MOMENTUM),
    "adafactor": _adafactor,
    "muon": _muon,
    "lion": lambda _, trainable, __: Lion(trainable),
    "adamw-8bit": lambda _, trainable, __: AdamW8bit(trainable),
}
