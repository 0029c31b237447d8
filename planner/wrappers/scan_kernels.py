"""The kernels of fused state-space scans: what each reads and writes, and the causal convolution before a scan.

They have shapes and gradients, no arithmetic. The functions of selective_scan.py and chunk_scan.py have the names and
arguments that transformers calls them by; products and copies that mamba_ssm's host code makes with torch are made with
torch there too, so that every temporary lives as long as theirs.

Source: Dao-AILab/causal-conv1d, causal_conv1d_interface.py.
"""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor

torch.library.define(
    "rigplan::scan_stream", "(str kernel, Tensor[] read, Tensor(a!)[] written, int flop, int instructions) -> ()"
)
torch.library.define(
    "rigplan::scan_product", "(str kernel, Tensor[] read, Tensor(a!)[] written, int batch, int m, int n, int k) -> ()"
)


@torch.library.register_fake("rigplan::scan_stream")
def _stream(kernel: str, read: Any, written: Any, flop: int, instructions: int) -> None:
    return None


@torch.library.register_fake("rigplan::scan_product")
def _product(kernel: str, read: Any, written: Any, batch: int, m: int, n: int, k: int) -> None:
    return None


def run(kernel: str, read: list[Tensor | None], written: list[Tensor], flop: int = 0, instructions: int = 0) -> None:
    """A kernel that streams what it reads and writes."""
    given = [tensor for tensor in read if tensor is not None]
    torch.ops.rigplan.scan_stream(kernel, given, written, flop, instructions)


def products(kernel: str, read: list[Tensor], written: list[Tensor], batch: int, m: int, n: int, k: int) -> None:
    """A kernel that makes `batch` products [m, k] x [k, n]."""
    torch.ops.rigplan.scan_product(kernel, read, written, batch, m, n, k)


def low_precision(*weights: Tensor | None) -> list[Any]:
    """The weights as autocast has them, made anew at every call: these functions cast them themselves."""
    if not torch.is_autocast_enabled("cpu"):
        return list(weights)
    low = torch.get_autocast_dtype("cpu")
    return [None if weight is None else weight.to(low) for weight in weights]


def rows_contiguous(tensor: Any) -> Any:
    return tensor if tensor is None or tensor.stride(-1) == 1 else tensor.contiguous()


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The causal convolution of each channel, with its activation."""
    out = torch.empty_like(x)
    run("causal_conv1d", [x, weight, bias], [out], 2 * x.numel() * weight.shape[-1], 2 * x.numel() * weight.shape[-1])
    return out


def convolution_gradients(
    x: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor, dx: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Writes dx; the gradients of weight and bias, summed in fp32."""
    dweight = torch.zeros_like(weight, dtype=torch.float32)
    dbias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    work = 4 * x.numel() * weight.shape[-1]
    run("causal_conv1d_backward", [x, weight, bias, grad], [dx, dweight, *([] if dbias is None else [dbias])],
         work, 2 * work)  # fmt: skip
    return dweight.to(weight.dtype), dbias if dbias is None or bias is None else dbias.to(bias.dtype)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        if x.stride(2) != 1 and x.stride(1) != 1:
            x = x.contiguous()
        ctx.save_for_backward(x, weight, bias)
        return convolve(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight, bias = ctx.saved_tensors
        dx = torch.empty_like(x)
        return dx, *convolution_gradients(x, weight, bias, grad, dx)


def causal_conv1d_fn(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any
) -> Any:
    """[batch, channels, length] by [channels, width], with the activation."""
    return _Convolution.apply(hidden_states, weight, bias)
