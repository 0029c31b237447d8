"""Attention: which kernel scaled_dot_product_attention takes on a GPU, and the stand-in that keeps what it keeps.

Order of preference and conditions as in torch's aten/native/transformers/cuda/sdp_utils.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from planner import fused_ops  # noqa: F401  registers the operators used below

aten: Any = torch.ops.aten
rigplan: Any = torch.ops.rigplan

HALF = (torch.bfloat16, torch.float16)
# torch prefers cuDNN's attention on exactly these generations, and there up to this head size.
CUDNN_HEAD_SIZE = {(9, 0): 256, (10, 0): 128}
FLASH_HEAD_SIZE = 256
# Consumer generations have too little shared memory for flash's backward at some head sizes above 192.
SMALL_SHARED_MEMORY = ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1))
MASK_ALIGNMENT = 8  # elements: memory-efficient attention copies a mask whose strides are no multiple of it
HEAD_ALIGNMENT_BYTES = 16  # of memory-efficient attention's loads where it works on tensor cores


@dataclass(frozen=True, slots=True)
class Mask:
    """What of an attention mask decides the kernel."""

    dims: int = 4
    needs_grad: bool = False
    rows_contiguous: bool = True  # the last dimension has stride 1


def attention_kernel(
    dtype: torch.dtype,
    head_size: int,
    *,
    capability: tuple[int, int],
    value_size: int | None = None,
    mask: Mask | None = None,
    grouped: bool = False,
    dropout: bool = False,
    rows_contiguous: bool = True,
    causal_oblong: bool = False,
    needs_grad: bool = True,
) -> str:
    """The kernel that runs: 'cudnn', 'flash', 'efficient' or 'math' (plain matmuls and a softmax).

    `head_size`: of queries and keys; `value_size`: of values where it is another, as in DeepSeek's latent attention;
    `grouped`: fewer key heads than query heads; `rows_contiguous`: q, k and v have stride 1 in their last dimension;
    `causal_oblong`: causal with as many queries as keys not being equal.
    """
    half = dtype in HALF
    sizes = (head_size, head_size if value_size is None else value_size)
    plain_mask = mask is None or (mask.dims in (2, 4) and not mask.needs_grad)
    if not rows_contiguous or (mask is not None and mask.dims not in (2, 4)):
        return "math"
    mask_fits = mask is None or mask.rows_contiguous
    cudnn_fits = all(size <= CUDNN_HEAD_SIZE.get(capability, 0) and size % 8 == 0 for size in sizes)
    if half and plain_mask and mask_fits and cudnn_fits:
        return "cudnn"
    flash_fits = mask is None and sizes[0] == sizes[1] and not causal_oblong
    if half and flash_fits and _flash_runs(head_size, capability, dropout, needs_grad):
        return "flash"
    aligned = not _on_tensor_cores(half, capability) or all(
        size * dtype.itemsize % HEAD_ALIGNMENT_BYTES == 0 for size in sizes
    )
    known = (
        dtype == torch.float32 or (dtype == torch.float16 and capability >= (5, 0)) or (half and capability >= (8, 0))
    )
    if known and aligned and mask_fits and not grouped:
        return "efficient"
    return "math"


def _on_tensor_cores(half: bool, capability: tuple[int, int]) -> bool:
    """Whether memory-efficient attention uses tensor cores (minimum_gemm_alignment); other cores load by element."""
    return capability >= (8, 0) or (half and capability >= (7, 0))


def _flash_runs(head_size: int, capability: tuple[int, int], dropout: bool, needs_grad: bool) -> bool:
    if capability < (8, 0) or head_size > FLASH_HEAD_SIZE:
        return False
    too_wide = 192 < head_size <= 224 or (head_size > 224 and dropout)
    return not (needs_grad and too_wide and capability in SMALL_SHARED_MEMORY)


def replacement(capability: tuple[int, int], *, drop_masks: bool = False) -> Callable[..., Any]:
    """scaled_dot_product_attention as a GPU of that compute capability runs it, for the dispatcher; with `drop_masks`,
    as it runs without a mask that can be seen to hide nothing or only what comes later."""

    def run(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if drop_masks and attn_mask is not None:
            attn_mask, is_causal = _needed(attn_mask, is_causal)
        kernel = "math" if q.dim() != 4 else _choose(q, k, v, attn_mask, dropout_p, is_causal, enable_gqa, capability)
        if kernel == "math":
            math = aten._scaled_dot_product_attention_math.default
            return math(q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa)[0]
        size = v.shape[-1]
        if attn_mask is not None and attn_mask.dtype == torch.bool:  # each call writes it out as numbers to add
            attn_mask = aten.where.ScalarSelf(attn_mask, 0.0, q.new_full((), -torch.inf))
        if kernel == "flash":
            q, k, v = _padded(q), _padded(k), _padded(v)
        elif kernel == "efficient" and attn_mask is not None:
            attn_mask = _aligned(attn_mask).expand(*q.shape[:3], k.shape[2])
        out = rigplan.attention_forward(q, k, v, attn_mask, dropout_p, is_causal, kernel)[0]
        return out if out.shape[-1] == size else out[..., :size]

    return run


def _needed(mask: torch.Tensor, causal: bool) -> tuple[torch.Tensor | None, bool]:
    """The mask, or none and whether that is causal; a fake tensor cannot be asked what it hides."""
    if isinstance(mask, FakeTensor) or mask.dtype != torch.bool:
        return mask, causal
    with unset_fake_temporarily():
        if bool(mask.all()):
            return None, causal
        rows, columns = mask.shape[-2:]
        later = torch.ones(rows, columns, dtype=torch.bool).triu(1)
        return (None, True) if rows == columns and bool((mask == ~later).all()) else (mask, causal)


def _choose(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, dropout_p: float, causal: bool,
    enable_gqa: bool, capability: tuple[int, int],
) -> str:  # fmt: skip
    return attention_kernel(
        q.dtype,
        q.shape[-1],
        capability=capability,
        value_size=v.shape[-1],
        mask=None
        if mask is None
        else Mask(mask.dim(), mask.requires_grad, mask.stride(-1) == 1 or mask.shape[-1] == 1),
        grouped=enable_gqa and q.shape[1] != k.shape[1],
        dropout=dropout_p > 0,
        rows_contiguous=all(part.stride(-1) == 1 for part in (q, k, v)),
        causal_oblong=causal and q.shape[2] != k.shape[2],
        needs_grad=torch.is_grad_enabled() and any(part.requires_grad for part in (q, k, v)),
    )


def _padded(part: torch.Tensor) -> torch.Tensor:
    """Flash works on head sizes that are a multiple of eight."""
    short = -part.shape[-1] % 8
    return aten.constant_pad_nd(part, [0, short]) if short else part


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """Memory-efficient attention pads a mask's rows (preprocess_mask in aten/native/transformers/attention.cpp)."""
    if all(step % MASK_ALIGNMENT == 0 for step in mask.stride()[:-1]) and mask.stride(-1) == 1:
        return mask
    length = mask.shape[-1]
    return aten.constant_pad_nd(mask, [0, MASK_ALIGNMENT - length % MASK_ALIGNMENT])[..., :length]
