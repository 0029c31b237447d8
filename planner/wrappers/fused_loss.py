"""The head and the cross-entropy fused, as Liger's FusedLinearCrossEntropy does it: the logits are never whole.

Tokens go through the head in chunks; each chunk's logits become their own gradient in place, which at once gives the
gradient of the hidden states and is summed into that of the head. Nothing of a chunk outlives it.

Source: linkedin/Liger-Kernel, ops/fused_linear_cross_entropy.py (chunks, buffers and sums) and ops/cross_entropy.py
(one kernel that goes twice through a row).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from catalog.errors import RigplanError
from planner.model_inputs import IGNORED

torch.library.define(
    "rigplan::cross_entropy_", "(Tensor(a!) logits, Tensor target, Tensor count, float? softcap) -> Tensor"
)

torch.library.define("rigplan::add_product_", "(Tensor(a!) total, Tensor one, Tensor two) -> Tensor(a!)")


@torch.library.register_fake("rigplan::cross_entropy_")
def _losses(logits: Any, target: Any, count: Any, softcap: float | None) -> Any:
    return logits.new_empty(logits.shape[0], dtype=torch.float32)


@torch.library.impl("rigplan::cross_entropy_", "CompositeExplicitAutograd")
def cross_entropy_(
    logits: torch.Tensor, target: torch.Tensor, count: torch.Tensor, softcap: float | None
) -> torch.Tensor:
    """The loss of each row over `count`; `logits` [rows, classes] become its gradient. `softcap` bends them first."""
    bent = logits.float() if softcap is None else softcap * torch.tanh(logits.float() / softcap)
    log_shares = bent.log_softmax(-1)
    kept = (target != IGNORED).unsqueeze(-1)
    place = target.unsqueeze(-1).where(kept, 0)
    gradient = log_shares.exp().scatter_add_(-1, place, -torch.ones_like(place, dtype=torch.float32))
    if softcap is not None:
        gradient *= 1 - (bent / softcap) ** 2
    logits.copy_((gradient / count).where(kept, 0.0))
    return (-log_shares.gather(-1, place) / count).where(kept, 0.0).squeeze(-1)


@torch.library.register_fake("rigplan::add_product_")
def _sum(total: Any, one: Any, two: Any) -> Any:
    return total


@torch.library.impl("rigplan::add_product_", "CompositeExplicitAutograd")
def add_product_(total: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """total [m, n] += one [m, k] @ two [k, n] of a lower precision. torch 2.11 cannot trace its own operator for it."""
    return torch.addmm(total, one, two, out_dtype=total.dtype, out=total)


def chunk_rows(tokens: int, width: int, classes: int) -> int:
    """Tokens in a chunk: so few that their logits are as large as all hidden states, rounded up to a power of 2."""
    rows = -(-tokens // -(-classes // width))
    return min(1 << (rows - 1).bit_length(), tokens)


class _HeadAndLoss(torch.autograd.Function):
    """The mean loss of hidden states [tokens, width] under a head; its gradients are ready when the forward ends."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Any, weight: Any, bias: Any, target: Any, count: Any, softcap: float | None, trained: bool
    ) -> Any:
        tokens, width = hidden.shape
        rows = chunk_rows(tokens, width, weight.shape[0])
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight) if trained and weight.requires_grad else None
        grad_bias = torch.zeros_like(bias) if trained and bias is not None and bias.requires_grad else None
        losses = torch.zeros(tokens, dtype=torch.float32, device=hidden.device)
        shared = hidden.new_empty(rows, weight.shape[0]) if _as_they_are(hidden, weight, bias) else None
        for start in range(0, tokens, rows):
            end = min(start + rows, tokens)
            part = hidden[start:end]
            logits = _product(part, weight, bias, shared)
            losses[start:end] = torch.ops.rigplan.cross_entropy_(logits, target[start:end], count, softcap)
            if trained and shared is not None:
                torch.mm(logits, weight, out=grad_hidden[start:end])
            elif trained:
                grad_hidden[start:end] = logits @ weight
            if grad_weight is not None:
                _add_product(grad_weight, logits.t(), part)
            if grad_bias is not None:
                grad_bias += logits.sum(0)
            del logits, part
        del shared
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        gradients = ctx.saved_tensors
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(grad)
        return *gradients, None, None, None, None


def _as_they_are(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether all products are of these dtypes: then every chunk uses the same buffer."""
    device, dtype = hidden.device.type, hidden.dtype
    cast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) != dtype
    return not cast and weight.dtype == dtype and (bias is None or bias.dtype == dtype)


def _product(part: Any, weight: Any, bias: Any, shared: torch.Tensor | None) -> torch.Tensor:
    if shared is None:
        logits: torch.Tensor = part @ weight.t()
        return logits if bias is None else logits + bias
    logits = shared[: part.shape[0]]
    torch.mm(part, weight.t(), out=logits)
    return logits if bias is None else logits.add_(bias)


def _add_product(total: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> None:
    """total += one @ two, inside the product's own kernel; sums in fp32 take low-precision factors."""
    two = two.to(one.dtype)
    if total.dtype == one.dtype:
        torch.addmm(total, one, two, out=total)
    else:
        torch.ops.rigplan.add_product_(total, one, two)


def head_and_loss(
    hidden: Any, weight: Any, bias: Any, target: Any, count: Any, softcap: float | None, trained: bool
) -> Any:
    """The mean loss of `hidden` [tokens, width] under a head [classes, width], over `count` targets."""
    return _HeadAndLoss.apply(hidden, weight, bias, target, count, softcap, trained)


def apply(module: torch.nn.Module, loss: str, kernel: Callable[..., Any] = head_and_loss) -> None:
    """Give `module`, a causal language model of transformers, this `loss`; `eager` changes nothing.

    `kernel` does what `head_and_loss` does: a real run gives Liger's own.

    It also evaluates so, as transformers' Trainer does (`skip_logits`) where no metric asks for the logits. Raises
    RigplanError for any other model, and where the head is no plain layer.
    """
    if loss == "eager":
        return
    model: Any = module
    if hasattr(model, "get_base_model"):  # of an adapter
        model = model.get_base_model()
    causal = getattr(getattr(model, "loss_function", None), "__name__", "") == "ForCausalLMLoss"
    if not causal or "self.loss_function(" not in inspect.getsource(type(model).forward):
        raise RigplanError("loss: fused-linear is for causal language models of transformers; use loss: eager")
    head: Any = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear:
        raise RigplanError("loss: fused-linear needs a plain head, not one with an adapter; use loss: eager")
    softcap = getattr(model.config, "final_logit_softcapping", None)
    if softcap is not None:
        model.config.final_logit_softcapping = None  # the kernel bends each chunk

    def fused(
        logits: torch.Tensor,  # the hidden states, which the head lets through
        labels: torch.Tensor,
        vocab_size: int,
        num_items_in_batch: torch.Tensor | int | None = None,
        shift_labels: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        if shift_labels is None:
            shift_labels = torch.nn.functional.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous()
        target = shift_labels.view(-1)
        count = (target != IGNORED).sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
        hidden = logits.view(-1, logits.shape[-1])
        return kernel(hidden, head.weight, head.bias, target, count, softcap, torch.is_grad_enabled())

    head.forward = torch.nn.Identity().forward  # type: ignore[method-assign]
    model.loss_function = fused
