"""How CUDA behaves, on a machine without CUDA.

Fake cpu tensors follow cpu kernels: another autocast list, dropout masks in the activation's dtype, attention kernels
that copy. Here the dispatcher is told CUDA's rules for as long as a trace lasts. The rules sit in the dispatcher (keys
AutocastCPU and AutogradCPU), so they also hold inside torch's own composites and while a checkpoint is recomputed,
where a function mode would be switched off.

Sources: torch/csrc/autograd and aten/src/ATen/autocast_mode.h (the CUDA lists), aten/native/cudnn/RNN.cpp.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from planner import attention, fused_ops

aten: Any = torch.ops.aten
rigplan: Any = torch.ops.rigplan

_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_LOW = attention.HALF

# Operators whose floating inputs CUDA's autocast turns to fp32.
TO_FP32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
    "sinh", "tan", "softplus", "layer_norm", "native_layer_norm", "group_norm", "cosine_similarity", "nll_loss",
    "nll_loss2d", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "cosine_embedding_loss",
    "poisson_nll_loss", "hinge_embedding_loss", "margin_ranking_loss", "multi_margin_loss",
    "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "binary_cross_entropy_with_logits",
    "cdist", "dist", "pdist", "renorm", "logsumexp", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar",
    "norm.Scalar", "norm.ScalarOpt_dim", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
)  # fmt: skip
# Operators that get `dtype=fp32` instead of a copy of their input: (name, position of dtype among the arguments).
TO_FP32_OUTPUT = {
    "softmax.int": 2, "log_softmax.int": 2, "sum": 1, "sum.dim_IntList": 3, "cumsum": 2, "cumprod": 2,
    "prod": 1, "prod.dim_int": 3,
}  # fmt: skip
# Operators whose inputs are brought to the widest of their dtypes.
TO_WIDEST = ("addcdiv", "addcmul", "scatter_add", "index_put", "dot", "atan2", "grid_sampler")
# Operators that cpu's autocast casts and CUDA's leaves alone: what they are made of is cast instead.
LEFT_ALONE = ("cross_entropy_loss", "avg_pool3d", "trace", "quantile", "stft", "cat", "stack")


@contextmanager
def cuda_semantics(capability: tuple[int, int], *, drop_masks: bool = False) -> Iterator[None]:
    """Inside, fake cpu tensors behave as tensors on a GPU of that compute capability; `drop_masks` as in attention."""
    library = torch.library.Library("aten", "IMPL")  # lives as long as the trace
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a kernel is replaced: that is what we want
        for name in TO_FP32:
            library.impl(name, _fp32(_overload(name)), "AutocastCPU")
        for name, position in TO_FP32_OUTPUT.items():
            library.impl(name, _fp32_output(_overload(name), position), "AutocastCPU")
        for name in TO_WIDEST:
            library.impl(name, _widest(_overload(name)), "AutocastCPU")
        for name in LEFT_ALONE:
            library.impl(name, torch.library.fallthrough_kernel, "AutocastCPU")
        library.impl("softmax.int", _softmax(aten._softmax.default), "AutogradCPU")
        library.impl("log_softmax.int", _softmax(aten._log_softmax.default), "AutogradCPU")
        library.impl("dropout", _dropout, "AutogradCPU")
        library.impl("linear", _linear, "AutogradCPU")
        attend = attention.replacement(capability, drop_masks=drop_masks)
        library.impl("scaled_dot_product_attention", attend, "AutogradCPU")
        for mode in fused_ops.RNN_MODES:
            library.impl(f"{mode}.input", _rnn(mode), "AutogradCPU")
            library.impl(f"{mode}.input", _rnn_autocast(mode), "AutocastCPU")
    try:
        yield
    finally:
        library._destroy()


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(aten, base), overload or "default")


def _eligible(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, list | tuple):
        return [_cast(item, dtype) for item in value]
    return value.to(dtype) if _eligible(value) and value.dtype != dtype else value


def _fp32(operator: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return operator(*[_cast(arg, torch.float32) for arg in args], **kwargs)

    return run


def _fp32_output(operator: Any, position: int) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("dtype") or (args[position] if len(args) > position else None)
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            if given is None and _eligible(args[0]):
                return operator(*args[:position], **{**kwargs, "dtype": torch.float32})
            return operator(*args, **kwargs)

    return run


def _widest(operator: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        flat = [item for arg in args for item in (arg if isinstance(arg, list | tuple) else (arg,))]
        dtypes = {item.dtype for item in flat if _eligible(item)}
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            if len(dtypes) > 1:
                args = tuple(_cast(arg, torch.float32) for arg in args)
            return operator(*args, **kwargs)

    return run


def _softmax(kernel: Any) -> Callable[..., Any]:
    """CUDA's softmax reads bf16 and writes fp32 in one kernel, without an fp32 copy of its input."""

    def run(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if dtype == torch.float32 and x.dtype in _LOW:
            return kernel(x, dim, True)
        return kernel(x if dtype is None else x.to(dtype), dim, False)

    return run


def _dropout(x: torch.Tensor, p: float, train: bool) -> Any:
    if not train or p == 0 or x.numel() == 0:
        return x
    return aten.native_dropout.default(x, p, True)[0] if p < 1 else x * 0


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """torch's linear (aten/native/Linear.cpp); it treats subclasses such as fakes apart: no bias is added in place."""
    if bias is None:
        return aten.matmul(x, weight.t())
    if x.dim() == 2:
        return aten.addmm(bias, x, weight.t())
    if x.dim() > 2 and x.is_contiguous():
        return aten.addmm(bias, x.reshape(-1, x.shape[-1]), weight.t()).view(*x.shape[:-1], weight.shape[0])
    return aten.matmul(x, weight.t()).add_(bias)


def _rnn(mode: str) -> Callable[..., Any]:
    def run(
        x: torch.Tensor, hx: Any, weights: list[torch.Tensor], has_biases: bool, layers: int, dropout: float,
        train: bool, bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        states = list(hx) if isinstance(hx, list | tuple) else [hx]
        y, h, c, *_ = rigplan.rnn_forward(mode, x, states, weights, layers, dropout, bidirectional, batch_first)
        return (y, h, c) if mode == "lstm" else (y, h)

    return run


def _rnn_autocast(mode: str) -> Callable[..., Any]:
    """Autocast casts an RNN's input, states and weights; the weights become one flat low-precision buffer."""

    def run(x: torch.Tensor, hx: Any, weights: list[torch.Tensor], *rest: Any) -> Any:
        low = torch.get_autocast_dtype("cpu")
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            flat = _OneBuffer.apply(low, *weights)
            states = _cast(hx, low)
            return _overload(f"{mode}.input")(_cast(x, low), states, flat, *rest)

    return run


class _OneBuffer(torch.autograd.Function):
    """Copies of weights in `dtype`, one after another in a buffer: what cuDNN reads."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: torch.Tensor) -> Any:
        ctx.dtypes = [weight.dtype for weight in weights]
        buffer = weights[0].new_empty(sum(weight.numel() for weight in weights), dtype=dtype)
        parts = buffer.split([weight.numel() for weight in weights])
        return tuple(part.view_as(weight).copy_(weight) for part, weight in zip(parts, weights, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, *(gradient.to(dtype) for gradient, dtype in zip(gradients, ctx.dtypes, strict=True))
