"""Mamba's scan and mixer by mamba_ssm's kernels; see scan_kernels.py.

Sources: state-spaces/mamba, mamba_ssm/ops/selective_scan_interface.py and csrc/selective_scan.
"""

from __future__ import annotations

from typing import Any

import torch

from planner.wrappers.scan_kernels import (
    Tensor,
    convolution_gradients,
    convolve,
    low_precision,
    rows_contiguous,
    run,
)

SCAN_BLOCK = 2048  # tokens between the states that the selective scan keeps (csrc/selective_scan)
# For each element of the state: a decay's exponential, at a quarter to a sixteenth of a lane's rate, the scan's combine
# steps and the output's multiply-add; backward does them again and carries five gradients.
SCAN_INSTRUCTIONS, SCAN_BACKWARD_INSTRUCTIONS = 20, 60
SCAN_FLOP = 9  # for each element of the state, as the authors count it; backward twice that


def mamba_selective_scan(
    hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
    z: Tensor | None = None, delta_bias: Tensor | None = None, delta_softplus: bool = False,
    return_last_state: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """Mamba's scan of [batch, channels, length]; with the last state where that is asked for."""
    out = _SelectiveScan.apply(hidden_states, dt, A, B, C, D, z, delta_bias)
    return (out, out.new_empty(*out.shape[:2], A.shape[-1])) if return_last_state else out


def mamba_inner_fn(
    xz: Tensor, conv1d_weight: Tensor, conv1d_bias: Tensor | None, x_proj_weight: Tensor, delta_proj_weight: Tensor,
    out_proj_weight: Tensor, out_proj_bias: Tensor | None, A: Tensor, B: Tensor | None = None,
    C: Tensor | None = None, D: Tensor | None = None, delta_bias: Tensor | None = None, **_: Any,
) -> Any:  # fmt: skip
    """Mamba's whole mixer between its input projection and its output: one step of autograd, half of it recomputed."""
    return _MambaInner.apply(
        xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, D,
        delta_bias,
    )  # fmt: skip


def _scanned(u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, z: Any, delta_bias: Any) -> tuple[Any, Any, Any]:
    """(output, states kept, gated output or None) of Mamba's scan."""
    batch, channels, length = u.shape
    states = u.new_empty(batch, channels, -(-length // SCAN_BLOCK), 2 * A.shape[-1], dtype=torch.float32)
    out = torch.empty_like(delta)
    gated = None if z is None else torch.empty_like(z)
    size = u.numel() * A.shape[-1]
    written = [out, states, *([] if gated is None else [gated])]
    run("selective_scan", [u, delta, A, B, C, D, z, delta_bias], written, SCAN_FLOP * size, SCAN_INSTRUCTIONS * size)
    return out, states, gated


def _scan_gradients(
    u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, z: Any, delta_bias: Any, grad: Any, states: Any, out: Any,
    dz: Any, again: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Gradients of u, delta, A, B, C, D, delta_bias; B's and C's are summed in fp32. `again`: the gated output too."""
    du, ddelta = torch.empty_like(u), torch.empty_like(delta)
    dA, dB, dC = torch.zeros_like(A), *(torch.zeros_like(part, dtype=torch.float32) for part in (B, C))
    dD, dbias = (None if part is None else torch.zeros_like(part) for part in (D, delta_bias))
    gated = torch.empty_like(out) if again else None
    written = [part for part in (du, ddelta, dA, dB, dC, dD, dbias, dz, gated) if part is not None]
    size = u.numel() * A.shape[-1]
    read = [u, delta, A, B, C, D, z, delta_bias, grad, states, out]
    run("selective_scan_backward", read, written, 2 * SCAN_FLOP * size, SCAN_BACKWARD_INSTRUCTIONS * size)
    return du, ddelta, dA, dB.to(B.dtype), dC.to(C.dtype), dD, dbias, gated


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, z: Any, delta_bias: Any) -> Any:
        u, delta, B, C, z = (rows_contiguous(part) for part in (u, delta, B, C, z))
        out, states, gated = _scanned(u, delta, A, B, C, D, z, delta_bias)
        ctx.save_for_backward(u, delta, A, B, C, D, z, delta_bias, states, None if z is None else out)
        return out if gated is None else gated

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        u, delta, A, B, C, D, z, delta_bias, states, out = ctx.saved_tensors
        dz = None if z is None else torch.empty_like(z)
        found = _scan_gradients(
            u, delta, A, B, C, D, z, delta_bias, rows_contiguous(grad), states, out, dz, again=False
        )
        du, ddelta, dA, dB, dC, dD, dbias, _ = found
        return du, ddelta, dA, dB, dC, dD, dz, dbias


class _MambaInner(torch.autograd.Function):
    """Keeps what it was given, the small projection, the scan's output and states; the convolution and the steps are
    made again in backward (checkpoint_lvl 1)."""

    @staticmethod
    def forward(
        ctx: Any, xz: Any, conv_weight: Any, conv_bias: Any, x_weight: Any, delta_weight: Any, out_weight: Any,
        out_bias: Any, A: Any, D: Any, delta_bias: Any,
    ) -> Any:  # fmt: skip
        x_weight, delta_weight, out_weight, out_bias = low_precision(x_weight, delta_weight, out_weight, out_bias)
        xz, conv_weight = rows_contiguous(xz), conv_weight.view(conv_weight.shape[0], -1)
        x, z = xz.chunk(2, dim=1)
        convolved, states_at = convolve(x, conv_weight, conv_bias), A.shape[-1]
        small = torch.nn.functional.linear(convolved.transpose(1, 2).reshape(-1, x.shape[1]), x_weight)
        rank = delta_weight.shape[1]
        delta = _steps(delta_weight, small, xz)
        B, C = (_by_length(small[:, at : at + states_at], xz) for at in (rank, rank + states_at))
        out, states, gated = _scanned(convolved, delta, A, B, C, D, z, delta_bias)
        ctx.save_for_backward(
            xz, conv_weight, conv_bias, small, x_weight, delta_weight, out_weight, A, B, C, D, delta_bias, states, out
        )
        ctx.has_bias = out_bias is not None
        return torch.nn.functional.linear(gated.transpose(1, 2), out_weight, out_bias)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (xz, conv_weight, conv_bias, small, x_weight, delta_weight, out_weight, A, B, C, D, delta_bias, states,
         out) = ctx.saved_tensors  # fmt: skip
        x, z = xz.chunk(2, dim=1)
        rank, states_at = delta_weight.shape[1], A.shape[-1]
        grad = rows_contiguous(grad).reshape(-1, grad.shape[-1]).t()
        convolved = convolve(x, conv_weight, conv_bias)
        delta = _steps(delta_weight, small, xz)
        dxz = torch.empty_like(xz)
        dx, dz = dxz.chunk(2, dim=1)
        dy = _samples_first(out_weight.t() @ grad, xz)
        dconvolved, ddelta, dA, dB, dC, dD, dbias, gated = _scan_gradients(
            convolved, delta, A, B, C, D, z, delta_bias, dy, states, out, dz, again=True
        )
        dout_weight = grad @ gated.transpose(1, 2).reshape(-1, gated.shape[1])
        dout_bias = grad.sum(dim=1) if ctx.has_bias else None
        del gated, dy, delta, out, states
        dsmall = torch.empty_like(small)
        for at, part in ((rank, dB), (rank + states_at, dC)):
            dsmall[:, at : at + states_at] = part.squeeze(1).transpose(1, 2).reshape(-1, states_at)
        flat = ddelta.transpose(0, 1).reshape(ddelta.shape[1], -1)
        ddelta_weight = flat @ small[:, :rank]
        dsmall[:, :rank] = flat.t() @ delta_weight
        dx_weight = dsmall.t() @ convolved.transpose(1, 2).reshape(-1, x.shape[1])
        flat = dconvolved.transpose(0, 1).reshape(dconvolved.shape[1], -1)
        flat.addmm_(x_weight.t(), dsmall.t())
        gradients = convolution_gradients(x, conv_weight, conv_bias, _samples_first(flat, xz), dx)
        dconv_weight = gradients[0].unsqueeze(1)
        return dxz, dconv_weight, gradients[1], dx_weight, ddelta_weight, dout_weight, dout_bias, dA, dD, dbias


def _steps(weight: Tensor, small: Tensor, like: Tensor) -> Tensor:
    return _samples_first(weight @ small[:, : weight.shape[1]].t(), like)


def _samples_first(flat: Tensor, like: Tensor) -> Tensor:
    """[channels, batch x length] seen as [batch, channels, length]."""
    return flat.view(flat.shape[0], like.shape[0], like.shape[-1]).transpose(0, 1)


def _by_length(part: Tensor, like: Tensor) -> Tensor:
    """[batch x length, states] as [batch, 1, states, length]."""
    return part.view(like.shape[0], like.shape[-1], -1).transpose(1, 2).unsqueeze(1).contiguous()
