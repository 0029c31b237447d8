"""What a GPU runs where a trace has another name: fused attention, recurrent nets, normalisation, softmax.

Each counterpart takes the call's real arguments by name and returns the one launch to repeat; what a backward pass
needs from its forward (log-sum-exp, random state, cuDNN's reserve) is made here, outside what is timed. Away from CUDA
torch's cpu kernels stand in, so that the same calls can be tried anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from calibrate.legal import NotReplayable
from planner import fused_ops  # noqa: F401  registers the operators whose schemas name the arguments

aten: Any = torch.ops.aten
Arguments = dict[str, Any]
Thunk = Callable[[], Any]

RANDOM_INSTRUCTIONS = 60  # of a fused kernel's element, from which on it draws random numbers
CUDNN_RNN_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
ALIGNED_MASK_ELEMENTS = 16  # the memory-efficient kernel wants each row of a mask to start at such a multiple


def attention_forward(given: Arguments, device: torch.device) -> Thunk:
    return _attention(given, device)


def attention_backward(given: Arguments, device: torch.device) -> Thunk:
    q, k, v, grad = given["q"], given["k"], given["v"], given["grad"]
    p, causal, kernel = given["dropout_p"], given["causal"], given["kernel"]
    bias = _bias(given)
    kept = _attention(given, device)()
    out, lse = kept[0], kept[1]
    if device.type != "cuda":
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return lambda: backward(grad, q, k, v, out, lse, 0.0, causal, attn_mask=bias)
    if kernel == "flash":
        _, _, cum_q, cum_k, max_q, max_k, seed, offset, _ = kept
        flash = aten._scaled_dot_product_flash_attention_backward
        return lambda: flash(grad, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, p, causal, seed, offset)
    if kernel == "cudnn":
        _, _, cum_q, cum_k, max_q, max_k, seed, offset, _ = kept
        cudnn = aten._scaled_dot_product_cudnn_attention_backward
        return lambda: cudnn(grad, q, k, v, out, lse, seed, offset, bias, cum_q, cum_k, max_q, max_k, p, causal)
    _, _, seed, offset = kept
    wanted = [True, True, True, bool(given.get("mask_grad"))]
    efficient = aten._scaled_dot_product_efficient_attention_backward
    return lambda: efficient(grad, q, k, v, bias, out, lse, seed, offset, p, wanted, causal)


def _attention(given: Arguments, device: torch.device) -> Thunk:
    q, k, v, bias = given["q"], given["k"], given["v"], _bias(given)
    p, causal, kernel = given["dropout_p"], given["causal"], given["kernel"]
    if device.type != "cuda":
        return lambda: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=bias)
    if kernel == "flash":
        return lambda: aten._scaled_dot_product_flash_attention(q, k, v, p, causal, False)
    if kernel == "cudnn":
        return lambda: aten._scaled_dot_product_cudnn_attention(q, k, v, bias, True, p, causal, False)
    if p > 0:
        raise NotReplayable("the memory-efficient kernel called alone with dropout ends in an illegal memory access")
    return lambda: aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, p, causal)


def _bias(given: Arguments) -> torch.Tensor | None:
    """The mask as an additive bias of full shape whose rows start aligned, as scaled_dot_product_attention makes it."""
    mask, q, k = given.get("mask"), given["q"], given["k"]
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
    if mask.stride(-1) != 1:
        mask = mask.contiguous()  # the fused kernels read a row of the bias as one piece
    columns = mask.shape[-1]
    if columns % ALIGNED_MASK_ELEMENTS and columns > 1:
        mask = torch.nn.functional.pad(mask, (0, -columns % ALIGNED_MASK_ELEMENTS))[..., :columns]
    return mask.expand(*q.shape[:3], k.shape[2])


def rnn_forward(given: Arguments, device: torch.device) -> Thunk:
    if device.type == "cuda":
        arguments = _cudnn_rnn(given, device)
        return lambda: aten._cudnn_rnn(*arguments)
    return lambda: _rnn_on_cpu(given)


def rnn_backward(given: Arguments, device: torch.device) -> Thunk:
    if device.type == "cuda":
        arguments = _cudnn_rnn(given, device)
        x, weights, stride, buffer, hx, cx, *rest = arguments
        y, _, _, reserve, _ = aten._cudnn_rnn(*arguments)
        grad = given["grad"]
        backward = aten._cudnn_rnn_backward
        wanted = [True, True, cx is not None, True]
        return lambda: backward(x, weights, stride, buffer, hx, cx, y, grad, None, None, *rest, reserve, wanted)
    with torch.enable_grad():
        leaves = [given["x"].detach().requires_grad_(), *(w.detach().requires_grad_() for w in given["weights"])]
        y = _rnn_on_cpu(given | {"x": leaves[0], "weights": leaves[1:]})[0]
    return lambda: torch.autograd.grad(y, leaves, given["grad"], retain_graph=True)


def _rnn_on_cpu(given: Arguments) -> Any:
    states = given["states"] if given["mode"] == "lstm" else given["states"][0]
    rest = given["layers"], given["dropout"], True, given["bidirectional"], given["batch_first"]
    return getattr(torch, given["mode"])(given["x"], states, given["weights"], _with_biases(given), *rest)


def _with_biases(given: Arguments) -> bool:
    directions = 2 if given["bidirectional"] else 1
    return bool(len(given["weights"]) == 4 * given["layers"] * directions)


def _cudnn_rnn(given: Arguments, device: torch.device) -> tuple[Any, ...]:
    """The arguments of `_cudnn_rnn`, with the weights in one flat buffer as nn.LSTM.flatten_parameters leaves them."""
    x, states, weights = given["x"], given["states"], given["weights"]
    hidden, layers, dropout = states[0].shape[-1], given["layers"], given["dropout"]
    mode, both, first = CUDNN_RNN_MODES[given["mode"]], given["bidirectional"], given["batch_first"]
    stride = 4 if _with_biases(given) else 2
    weights = [weight.clone() for weight in weights]
    buffer = torch._cudnn_rnn_flatten_weight(weights, stride, x.shape[-1], mode, hidden, 0, layers, first, both)
    state = aten._cudnn_init_dropout_state(dropout, True, 0, dtype=torch.uint8, device=device) if dropout > 0 else None
    hx = states[0].contiguous()
    cx = states[1].contiguous() if given["mode"] == "lstm" else None
    return x, weights, stride, buffer, hx, cx, mode, hidden, 0, layers, first, dropout, True, both, [], state


def batch_norm_forward(given: Arguments, device: torch.device) -> Thunk:
    """torch chooses cuDNN's or its own kernel by shape and dtype, as nn.BatchNorm does."""
    arguments = _batch_norm(given)
    return lambda: aten._batch_norm_impl_index(*arguments)


def batch_norm_backward(given: Arguments, device: torch.device) -> Thunk:
    x, weight, _, mean, var, training, _, eps, _ = arguments = _batch_norm(given)
    _, saved_mean, saved_var, reserve, which = aten._batch_norm_impl_index(*arguments)
    grad, wanted = given["grad_out"], given["output_mask"]
    backward = aten._batch_norm_impl_index_backward
    return lambda: backward(which, x, grad, weight, mean, var, saved_mean, saved_var, training, eps, wanted, reserve)


def _batch_norm(given: Arguments) -> tuple[Any, ...]:
    weight, bias = given["weight"], given.get("bias")
    if bias is None and weight is not None:
        bias = torch.randn_like(weight)
    mean, var = given.get("running_mean"), given.get("running_var")
    training = given["training"] if "training" in given else given["train"]
    mean, var = (None if moment is None else moment.abs() for moment in (mean, var))
    return given["input"], weight, bias, mean, var, training, given.get("momentum", 0.1), given["eps"], True


def layer_norm_backward(given: Arguments, device: torch.device) -> Thunk:
    """A GPU keeps the mean and the deviation of low-precision rows in fp32; a trace made on cpu says otherwise."""
    low = device.type != "cuda"
    dtype = given["input"].dtype if low else torch.float32
    given = given | {name: given[name].to(dtype) for name in ("mean", "rstd")}
    return lambda: aten.native_layer_norm_backward(*given.values())


def rms_norm_backward(given: Arguments, device: torch.device) -> Thunk:
    given = given | {"rstd": given["rstd"].float()}
    return lambda: aten._fused_rms_norm_backward(*given.values())


def softmax(name: str) -> Callable[[Arguments, torch.device], Thunk]:
    """Out of a lower precision into fp32: in one kernel or after a copy, as this torch decides."""
    operator, composite = getattr(aten, f"_{name}"), getattr(torch, name)

    def forward(given: Arguments, device: torch.device) -> Thunk:
        x, dim, widened = given["self"], given["dim"], given["half_to_float"]
        return (lambda: composite(x, dim, dtype=torch.float32)) if widened else lambda: operator(x, dim, False)

    return forward


def softmax_backward(name: str) -> Callable[[Arguments, torch.device], Thunk]:
    """Out of fp32 into the input's dtype; where this torch cannot in one kernel, the gradient is cast afterwards."""
    operator = getattr(aten, f"_{name}_backward_data")

    def backward(given: Arguments, device: torch.device) -> Thunk:
        grad, out, dim, dtype = given.values()
        try:
            if operator(grad, out, dim, dtype).dtype == dtype:
                return lambda: operator(grad, out, dim, dtype)
        except RuntimeError:
            pass
        return lambda: operator(grad, out, dim, grad.dtype).to(dtype)

    return backward


def fused(given: Arguments, device: torch.device) -> Thunk:
    """A chain over rows as long as what is reduced, compiled on a GPU; tensors of other sizes are read by broadcast."""
    kept, reduced = given["kept"], given["reduced"]
    p = 0.1 if given["instructions"] >= RANDOM_INSTRUCTIONS * kept * reduced else 0.0
    parts = [part.view(kept, reduced) if part.numel() == kept * reduced else part for part in given["read"]]
    chain = torch.compile(_chain, dynamic=False) if device.type == "cuda" else _chain
    return lambda: chain(parts, reduced > 1, p)


def _chain(parts: list[torch.Tensor], reduces: bool, p: float) -> list[torch.Tensor]:
    """Pointwise steps over the sum of the parts; where rows are reduced, a normalisation of each."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    if reduces:
        total = (total - total.mean(-1, keepdim=True)) * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-5)
    total = torch.nn.functional.dropout(total * torch.sigmoid(total), p)
    return [total.to(parts[0].dtype).view(-1)]


COUNTERPARTS: dict[str, Callable[[Arguments, torch.device], Thunk]] = {
    "rigplan.attention_forward": attention_forward,
    "rigplan.attention_backward": attention_backward,
    "rigplan.rnn_forward": rnn_forward,
    "rigplan.rnn_backward": rnn_backward,
    "rigplan.fused": fused,
    "_softmax": softmax("softmax"),
    "_log_softmax": softmax("log_softmax"),
    "_softmax_backward_data": softmax_backward("softmax"),
    "_log_softmax_backward_data": softmax_backward("log_softmax"),
    "native_layer_norm_backward": layer_norm_backward,
    "_fused_rms_norm_backward": rms_norm_backward,
    "native_batch_norm": batch_norm_forward,
    "native_batch_norm_backward": batch_norm_backward,
}
