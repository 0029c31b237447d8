"""A network with a kernel of its own: torch.library says what it gives, and rigplan how many bytes it moves.

docs/extending.md adds it to the operators that rigplan knows by name.
"""

import torch
from torch import Tensor, nn


@torch.library.custom_op("mylib::swiglu", mutates_args=())
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return nn.functional.silu(gate) * up


@swiglu.register_fake
def _(gate: Tensor, up: Tensor) -> Tensor:
    return torch.empty_like(gate)


@torch.library.custom_op("mylib::swiglu_backward", mutates_args=())
def swiglu_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gate), torch.empty_like(up)


@swiglu_backward.register_fake
def _(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gate), torch.empty_like(up)


swiglu.register_autograd(
    lambda ctx, grad: swiglu_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(1024, 4096), nn.Linear(1024, 4096), nn.Linear(4096, 1024)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(swiglu(self.gate(x), self.up(x))).square().mean()


def make(batch_size: int) -> tuple[nn.Module, dict[str, Tensor]]:
    return Net(), {"x": torch.zeros(batch_size, 1024)}
