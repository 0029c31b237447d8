"""Optimizers by the name that a spec uses, each torch's own where torch has one; the same for the trace and for real runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from catalog.errors import RigplanError

Parameters = list[torch.nn.Parameter]


class Lion(torch.optim.Optimizer):
    """Lion (arXiv 2302.06675): one momentum a parameter, the step is a sign."""

    def __init__(self, params: Parameters, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99)) -> None:
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
                parameter.add_(torch.sign(momentum * first + parameter.grad * (1 - first)), alpha=-group["lr"])
                momentum.mul_(second).add_(parameter.grad, alpha=1 - second)


class AdamW8bit(torch.optim.Optimizer):
    """bitsandbytes' AdamW8bit as memory sees it: two bytes a parameter, and one fp32 scale a block of 256 and state.

    Tensors under 4096 elements keep fp32 states (bitsandbytes' min_8bit_size). The update is one fused kernel a tensor.
    """

    BLOCK, SMALLEST = 256, 4096

    def __init__(self, params: Parameters) -> None:
        super().__init__(params, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    small = parameter.numel() < self.SMALLEST
                    for name in ("state1", "state2"):
                        state[name] = torch.zeros_like(parameter, dtype=torch.float32 if small else torch.uint8)
                        if not small:
                            scales = -(-parameter.numel() // self.BLOCK)
                            state[f"absmax_{name}"] = parameter.new_zeros(scales, dtype=torch.float32)
                parameter.addcdiv_(parameter.grad, parameter.grad)


def _adam(kind: Any) -> Callable[[Parameters, str], torch.optim.Optimizer]:
    return lambda parameters, implementation: kind(parameters, lr=1e-4, **_implementation(implementation))


def _sgd(parameters: Parameters, implementation: str) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, **_implementation(implementation))


def _adafactor(parameters: Parameters, implementation: str) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(parameters, foreach=implementation == "foreach")


class Muon(torch.optim.Optimizer):
    """Muon for matrices, AdamW for the rest: as torch.optim.Muon asks to be used."""

    def __init__(self, params: Parameters, implementation: str) -> None:
        super().__init__(params, {})
        matrices = [parameter for parameter in params if parameter.dim() == 2]
        others = [parameter for parameter in params if parameter.dim() != 2]
        self.parts: list[torch.optim.Optimizer] = [torch.optim.Muon(matrices)] if matrices else []
        if others:
            self.parts.append(torch.optim.AdamW(others, **_implementation(implementation)))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()


OPTIMIZERS: dict[str, Callable[[Parameters, str], torch.optim.Optimizer]] = {
    "adamw": _adam(torch.optim.AdamW),
    "adam": _adam(torch.optim.Adam),
    "sgd": _sgd,
    "adafactor": _adafactor,
    "lion": lambda parameters, _: Lion(parameters),
    "adamw-8bit": lambda parameters, _: AdamW8bit(parameters),
    "muon": lambda parameters, implementation: Muon(parameters, implementation),
}


def _implementation(name: str) -> dict[str, bool]:
    return {"foreach": name == "foreach", "fused": name == "fused"}


def build_optimizer(name: str, parameters: Iterable[torch.nn.Parameter], implementation: str) -> torch.optim.Optimizer:
    """The optimizer `name` over the trainable parameters. Raises RigplanError when nothing is trainable."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise RigplanError("no parameter of the model is trainable: nothing to optimise")
    return OPTIMIZERS[name](trained, implementation)


@torch.no_grad()
def clip_gradients(parameters: Parameters, max_norm: float) -> None:
    """torch.nn.utils.clip_grad_norm_ as it runs on a GPU: one norm kernel a chunk of tensors, then one scaling in place."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for gradient in gradients:
        by_dtype.setdefault(gradient.dtype, []).append(gradient)
    norms = [norm for group in by_dtype.values() for norm in torch._foreach_norm(group, 2.0)]
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].dtype) for norm in norms]), 2.0)
    coefficient = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for group in by_dtype.values():
        torch._foreach_mul_(group, coefficient.to(group[0].dtype))
