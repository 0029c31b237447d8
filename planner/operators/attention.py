"""Fused attention and recurrent layers: rigplan's own operators and torch's."""

from __future__ import annotations

import math

from planner.call import Call, TensorSpec
from planner.operators.operator import Describer, Operator, argument, size, tensors

BACKWARD_OVER_FORWARD = 2.5
"""Five products against two: the scores are computed again."""

TORCH_KERNELS = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_fused_attention_overrideable": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_flash_attention_forward": "flash",
    "_efficient_attention_forward": "efficient",
}
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def forward(variant: str, call: Call) -> Operator:
    """rigplan.attention_forward(q, k, v, mask, dropout_p, causal, kernel)."""
    q, k, v = (tensors(call.arguments[place])[0] for place in range(3))
    mask, dropout, causal, kernel = call.arguments[3:7]
    return _describe(str(kernel), call, (q, k, v), mask, dropout, causal, backward=0)


def backward(variant: str, call: Call) -> Operator:
    """rigplan.attention_backward(grad_out, q, k, v, out, lse, mask, dropout_p, causal, kernel)."""
    q, k, v = (tensors(call.arguments[place])[0] for place in range(1, 4))
    mask, dropout, causal, kernel = call.arguments[6:10]
    return _describe(str(kernel), call, (q, k, v), mask, dropout, causal, backward=1)


def torch_attention(variant: str, call: Call) -> Operator:
    """torch's fused kernels: (q, k, v, ...) forward, (grad_out, q, k, v, ...) backward."""
    is_backward = variant.endswith("_backward")
    kernel = TORCH_KERNELS.get(variant.removesuffix("_backward"), "efficient" if "efficient" in variant else "flash")
    start = int(is_backward)
    q, k, v = (tensors(call.arguments[start + place])[0] for place in range(3))
    flags = [value for value in call.arguments if isinstance(value, bool)]
    causal = bool(dict(call.keywords).get("is_causal", flags[-1] if flags and is_backward else any(flags[:1])))
    mask = argument(call, 3) if kernel != "flash" and not is_backward else None
    dropout = next((value for value in call.arguments if isinstance(value, float)), 0.0)
    return _describe(kernel, call, (q, k, v), mask, dropout, causal, backward=int(is_backward))


def rnn(variant: str, call: Call) -> Operator:
    """rigplan.rnn_forward(mode, x, states, weights, layers, dropout, bidirectional, batch_first), or
    rigplan.rnn_backward(grad, mode, x, states, weights, y, reserve, layers, dropout, bidirectional, batch_first)."""
    start = 1 if "backward" in variant else 0
    mode, image = str(call.arguments[start]), tensors(call.arguments[start + 1])[0]
    hidden = tensors(call.arguments[start + 2])[0].shape[-1]
    layers, _, bidirectional, batch_first = call.arguments[7 if start else 4 :][:4]
    return _rnn(variant, call, image, GATES[mode], hidden, layers, bool(batch_first), bool(bidirectional))


def cudnn_rnn(variant: str, call: Call) -> Operator:
    """torch's _cudnn_rnn(input, weights, stride0, weight_buf, hx, cx, mode, hidden, proj, layers, batch_first, ...)."""
    place = 7 if "backward" not in variant else 10
    counts = [value for value in call.arguments if type(value) is int]
    flags = [value for value in call.arguments if isinstance(value, bool)]
    mode, hidden, layers = counts[1], counts[2], counts[4]
    gates = {2: 4, 3: 3}.get(mode, 1)
    bidirectional = flags[-1] if flags else False
    return _rnn(variant, call, call.tensors[0], gates, hidden, layers, flags[0] if flags else place == 0, bidirectional)


def _rnn(
    variant: str, call: Call, image: TensorSpec, gates: int, hidden: int, layers: int, batch_first: bool, both: bool
) -> Operator:
    lengths = image.shape if len(image.shape) == 3 else (image.shape[0], 1, image.shape[-1])
    steps, batch, width = lengths if not batch_first or len(image.shape) < 3 else (lengths[1], lengths[0], lengths[2])
    directions = 2 if both else 1
    widths = [width] + [hidden * directions] * (layers - 1)
    is_backward = int("backward" in variant)
    products = sum(2.0 * gates * hidden * (item + hidden) for item in widths) * steps * batch * directions
    shape = (batch, steps, width, hidden, layers, directions, gates, is_backward)
    return Operator(
        "rnn", variant, image.dtype, shape, products * (1 + is_backward), size(call.tensors), size(call.results)
    )


def _describe(
    kernel: str, call: Call, factors: tuple[TensorSpec, TensorSpec, TensorSpec], mask: object, dropout: object,
    causal: object, backward: int,
) -> Operator:  # fmt: skip
    q, k, v = factors
    batch, heads, queries = math.prod(q.shape[:-3]), q.shape[-3], q.shape[-2]
    kv_heads, keys = k.shape[-3], k.shape[-2]
    flop = 2.0 * batch * heads * queries * keys * (q.shape[-1] + v.shape[-1])
    dropped = isinstance(dropout, float) and dropout > 0
    shape = (
        batch, heads, kv_heads, queries, keys, q.shape[-1], int(bool(causal)), backward, int(mask is not None),
        int(dropped),
    )  # fmt: skip
    flop *= BACKWARD_OVER_FORWARD if backward else 1
    return Operator("attention", kernel, q.dtype, shape, flop, size(call.tensors), size(call.results))


OPERATORS: dict[str, Describer] = {
    "rigplan.attention_forward": forward,
    "rigplan.attention_backward": backward,
    **dict.fromkeys(TORCH_KERNELS, torch_attention),
    **dict.fromkeys((f"{name}_backward" for name in TORCH_KERNELS if not name.endswith("_forward")), torch_attention),
    "_flash_attention_backward": torch_attention,
    "_efficient_attention_backward": torch_attention,
    "rigplan.rnn_forward": rnn,
    "rigplan.rnn_backward": rnn,
    "_cudnn_rnn": cudnn_rnn,
    "_cudnn_rnn_backward": cudnn_rnn,
    "miopen_rnn": cudnn_rnn,
}
