"""Operators that torch has only on a GPU, under names of our own: fused attention and cuDNN's recurrent nets.

They have shapes and gradients, no arithmetic. What a kernel keeps for its backward pass is what memory depends on:
attention keeps its inputs, its output and one fp32 log-sum-exp a row; a recurrent net keeps cuDNN's reserve.
"""

from __future__ import annotations

from typing import Any

import torch

RNN_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
RNN_MODES = tuple(RNN_GATES)

torch.library.define(
    "rigplan::attention_forward",
    "(Tensor q, Tensor k, Tensor v, Tensor? mask, float dropout_p, bool causal, str kernel) -> (Tensor, Tensor)",
)
torch.library.define(
    "rigplan::attention_backward",
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? mask, float dropout_p, bool causal,"
    " str kernel, bool mask_grad) -> (Tensor, Tensor, Tensor, Tensor)",
)
torch.library.define(
    "rigplan::rnn_forward",
    "(str mode, Tensor x, Tensor[] states, Tensor[] weights, int layers, float dropout, bool bidirectional,"
    " bool batch_first) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
torch.library.define(
    "rigplan::rnn_backward",
    "(Tensor grad, str mode, Tensor x, Tensor[] states, Tensor[] weights, Tensor y, Tensor reserve, int layers,"
    " float dropout, bool bidirectional, bool batch_first) -> (Tensor, Tensor[], Tensor)",
)

# What a compiler made of many operators (planner.compiled): known by what it reads, and run only when it is timed.
torch.library.define(
    "rigplan::fused",
    "(Tensor[] read, *, int kept, int reduced, bool persistent, int scattered, int instructions) -> Tensor[]",
)


def _written_like(like: torch.Tensor, head_size: int, kernel: str) -> torch.Tensor:
    """[batch, heads, rows, size] as a fused kernel writes it: cuDNN in the order of `like`, the others rows first."""
    batch, heads, rows, _ = like.shape
    if kernel == "cudnn" and like.stride(1) > like.stride(2):
        return like.new_empty(batch, heads, rows, head_size)
    return like.new_empty(batch, rows, heads, head_size).transpose(1, 2)


@torch.library.register_fake("rigplan::attention_forward")
def _attention_forward(q: Any, k: Any, v: Any, mask: Any, dropout_p: float, causal: bool, kernel: str) -> Any:
    batch, heads, rows, _ = q.shape
    kept_rows = -(-rows // 32) * 32 if kernel == "efficient" else rows
    lse = q.new_empty(batch, heads, kept_rows, dtype=torch.float32)
    return _written_like(q, v.shape[-1], kernel), lse


@torch.library.register_fake("rigplan::attention_backward")
def _attention_backward(
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    mask: Any,
    dropout_p: float,
    causal: bool,
    kernel: str,
    mask_grad: bool,
) -> Any:
    grad_mask = torch.empty_like(mask) if mask_grad else q.new_empty(0)
    return (*(_written_like(part, part.shape[-1], kernel) for part in (q, k, v)), grad_mask)


def _attention_setup(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, mask, ctx.dropout_p, ctx.causal, ctx.kernel = inputs
    out, lse = output
    ctx.save_for_backward(q, k, v, out, lse, *([] if mask is None else [mask]))
    ctx.mask_grad = mask is not None and mask.requires_grad
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)  # no zeros for the log-sum-exp


def _attention_gradient(ctx: Any, grad: Any, _: Any) -> Any:
    q, k, v, out, lse, *rest = ctx.saved_tensors
    mask = rest[0] if rest else None
    dq, dk, dv, dmask = torch.ops.rigplan.attention_backward(
        grad, q, k, v, out, lse, mask, ctx.dropout_p, ctx.causal, ctx.kernel, ctx.mask_grad
    )
    return dq, dk, dv, dmask if ctx.mask_grad else None, None, None, None


torch.library.register_autograd("rigplan::attention_forward", _attention_gradient, setup_context=_attention_setup)


def _reserve_elements(mode: str, x: Any, hidden: int, layers: int, directions: int, dropout: float) -> int:
    """cuDNN keeps the gates and the state of every layer, direction, step and sample, and what each layer but the last
    hands on; with dropout a bit for each of those too. Exact against an LSTM's allocations on an H200."""
    one = x.shape[0] * x.shape[1] * hidden * directions
    bits = -(-one // (8 * x.element_size())) if dropout > 0 else 0
    return one * layers * (RNN_GATES[mode] + 1) + (layers - 1) * (one + bits)


@torch.library.register_fake("rigplan::rnn_forward")
def _rnn_forward(
    mode: str, x: Any, states: Any, weights: Any, layers: int, dropout: float, bidirectional: bool, batch_first: bool
) -> Any:
    """Output, last states, a buffer for weights that lie apart, what the backward needs: in the order of birth."""
    directions = 2 if bidirectional else 1
    hidden = states[0].shape[-1]
    outer, inner = x.shape[:2]
    wide = hidden * directions  # steps first in memory, however the caller orders them
    y = x.new_empty(inner, outer, wide).transpose(0, 1) if batch_first else x.new_empty(outer, inner, wide)
    reserve = x.new_empty(_reserve_elements(mode, x, hidden, layers, directions, dropout))
    cell = torch.empty_like(states[-1]) if mode == "lstm" else x.new_empty(0)
    # torch keeps an RNN's weights in one buffer, as cuDNN reads them, but for those in bf16
    apart = weights[0].dtype == torch.bfloat16 and len({weight.untyped_storage()._cdata for weight in weights}) > 1
    buffer = x.new_empty(sum(weight.numel() for weight in weights) if apart else 0)
    return y, torch.empty_like(states[0]), cell, buffer, reserve


@torch.library.register_fake("rigplan::rnn_backward")
def _rnn_backward(
    grad: Any, mode: str, x: Any, states: Any, weights: Any, y: Any, reserve: Any, layers: int, dropout: float,
    bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    return torch.empty_like(x), [torch.empty_like(s) for s in states], x.new_empty(sum(w.numel() for w in weights))


def _rnn_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.mode, x, states, weights, ctx.layers, ctx.dropout, ctx.bidirectional, ctx.batch_first = inputs
    y, _, _, buffer, reserve = output
    ctx.n_states = len(states)
    ctx.save_for_backward(x, y, buffer, reserve, *states, *weights)
    ctx.mark_non_differentiable(buffer, reserve)
    ctx.set_materialize_grads(False)


def _rnn_gradient(ctx: Any, grad: Any, *_: Any) -> Any:
    x, y, _, reserve, *rest = ctx.saved_tensors
    states, weights = rest[: ctx.n_states], rest[ctx.n_states :]
    dx, dstates, flat = torch.ops.rigplan.rnn_backward(
        grad, ctx.mode, x, states, weights, y, reserve, ctx.layers, ctx.dropout, ctx.bidirectional, ctx.batch_first
    )
    # cuDNN writes the gradients of all weights into one buffer.
    dweights = [part.view(w.shape) for part, w in zip(flat.split([w.numel() for w in weights]), weights, strict=True)]
    return None, dx, list(dstates), dweights, None, None, None, None


torch.library.register_autograd("rigplan::rnn_forward", _rnn_gradient, setup_context=_rnn_setup)
