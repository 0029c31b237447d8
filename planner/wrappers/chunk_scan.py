"""Mamba-2's scan in chunks and its mixer by mamba_ssm's kernels; see scan_kernels.py.

Sources: state-spaces/mamba, mamba_ssm/ops/triton/ssd_*.py and layernorm_gated.py.
"""

from __future__ import annotations

from typing import Any

import torch

from planner.wrappers.scan_kernels import (
    Tensor,
    convolution_gradients,
    convolve,
    low_precision,
    products,
    rows_contiguous,
    run,
)

GRADIENT_BLOCK = 32  # rows of the smallest block of the kernel that sums the gradient of D


def mamba2_chunk_scan(
    hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int, D: Tensor | None = None,
    dt_bias: Tensor | None = None, return_final_states: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """Mamba-2's scan of [batch, length, heads, head size] in chunks."""
    out = _ChunkScan.apply(hidden_states, dt, A, B, C, D, dt_bias, chunk_size)
    if not return_final_states:
        return out
    return out, out.new_empty(out.shape[0], *out.shape[2:], B.shape[-1], dtype=torch.float32)


def mamba2_split_conv1d_scan_combined(
    zxbcdt: Tensor, conv1d_weight: Tensor, conv1d_bias: Tensor | None, dt_bias: Tensor, A: Tensor, D: Tensor,
    chunk_size: int, rmsnorm_weight: Tensor | None = None, outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None, headdim: int | None = None, ngroups: int = 1, **_: Any,
) -> Any:  # fmt: skip
    """Mamba-2's whole mixer between its input projection and its output, gated norm and projection included."""
    return _SplitScan.apply(
        zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, rmsnorm_weight, outproj_weight, outproj_bias, chunk_size,
        headdim, ngroups,
    )  # fmt: skip


def _chunk_forward(x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, dt_bias: Any, chunk: int) -> tuple[Any, Any]:
    """(output, cumulated decays) of Mamba-2's scan."""
    batch, _, heads, size = x.shape
    states_at = B.shape[-1]
    decays, steps = _chunk_steps(dt, A, dt_bias, chunk)
    states = _chunk_states(x, B, steps, decays)
    passed = x.new_empty(states.shape, dtype=C.dtype)
    last = x.new_empty(batch, heads, size, states_at, dtype=torch.float32)
    run("state_passing", [states, decays], [passed, last], 2 * states.numel(), 4 * states.numel())
    del states, last
    scores = _chunk_scores(C, B, chunk)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    chunks = scores.shape[1]
    read = [scores, x, steps, decays, C, passed, *([] if D is None else [D])]
    products("chunk_scan", read, [out], batch * chunks * heads, chunk, size, states_at + chunk // 2)
    return out, decays


def _chunk_steps(dt: Any, A: Any, dt_bias: Any, chunk: int) -> tuple[Any, Any]:
    batch, length, heads = dt.shape
    decays = dt.new_empty(batch, heads, -(-length // chunk), chunk, dtype=torch.float32)
    steps = torch.empty_like(decays)
    run("chunk_cumsum", [dt, A, dt_bias], [decays, steps], 4 * dt.numel(), 20 * dt.numel())
    return decays, steps


def _chunk_states(x: Any, B: Any, steps: Any, decays: Any) -> Any:
    batch, _, heads, size = x.shape
    chunks, chunk = steps.shape[2:]
    states = x.new_empty(batch, chunks, heads, size, B.shape[-1], dtype=torch.float32)
    products("chunk_state", [x, B, steps, decays], [states], batch * chunks * heads, size, B.shape[-1], chunk)
    return states


def _chunk_scores(C: Any, B: Any, chunk: int) -> Any:
    batch, length, groups, states_at = B.shape
    chunks = -(-length // chunk)
    scores = B.new_empty(batch, chunks, groups, chunk, chunk, dtype=torch.float32)
    products("chunk_scores", [C, B], [scores], batch * chunks * groups, chunk, chunk, states_at)
    return scores


def _chunk_backward(
    grad: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, dt_bias: Any, chunk: int, dx: Any, ddt: Any, dB: Any,
    dC: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Writes dx, ddt, dB, dC; gives the gradients of A, D and dt_bias. Everything of the forward is made again."""
    batch, length, heads, size = x.shape
    groups, states_at = B.shape[2:]
    dt = dt.clone()
    decays, steps = _chunk_steps(dt, A, dt_bias, chunk)
    scores = _chunk_scores(C, B, chunk)
    chunks = scores.shape[1]
    rows = batch * chunks * heads
    states = _chunk_states(x, B, steps, decays)
    passed, last = torch.empty_like(states), x.new_empty(batch, heads, size, states_at, dtype=torch.float32)
    run("state_passing", [states, decays], [passed, last], 2 * states.numel(), 4 * states.numel())
    dstates = torch.empty_like(passed)
    products("chunk_scan_backward_states", [C, decays, grad], [dstates], rows, size, states_at, chunk)
    dpassed, low = (x.new_empty(states.shape) for _ in range(2))
    ends = decays.new_empty(batch, heads, chunks)
    run("state_passing_backward", [passed, decays, dstates], [dpassed, ends, low], 4 * states.numel(),
         8 * states.numel())  # fmt: skip
    del states, passed, dstates, last
    dsteps = torch.empty_like(steps)
    parts = None if D is None else decays.new_empty(-(-chunk // GRADIENT_BLOCK), batch, chunks, heads, 1)
    written = [dx, dsteps, *([] if parts is None else [parts])]
    read = [x, scores, grad, steps, decays, B, dpassed]
    products("chunk_scan_backward_dx", read, written, rows, chunk, size, states_at + chunk // 2)
    dD = None if parts is None or D is None else parts.sum(dim=(0, 1, 2)).to(D.dtype).view(D.shape)
    del parts
    shape = (batch, length, 1, groups, states_at)  # a small batch is split among more sums, of about the size of dx
    sums, ddecays = [], []
    for kernel, other, source in (("chunk_state_backward_dB", dpassed, x), ("chunk_scan_backward_dC", low, grad)):
        wide, ddecay = decays.new_empty(shape), torch.empty_like(decays)
        products(kernel, [source, steps, decays, other], [wide, ddecay], rows, chunk, states_at, size)
        sums.append(wide.sum(2))
        ddecays.append(ddecay)
        del wide
    dscores = decays.new_empty(batch, chunks, 1, groups, chunk, chunk)
    products("chunk_scan_backward_scores", [x, steps, decays, grad], [dscores], rows, chunk, chunk // 2, size)
    dscores = dscores.sum(2)
    for kernel, factor, part, result in (("dB", C, sums[0], dB), ("dC", B, sums[1], dC)):
        read = [factor, dscores, part]
        products(f"chunk_scores_backward_{kernel}", read, [result], batch * chunks * groups, chunk, states_at, chunk)
    ddecay = torch.empty_like(decays)
    products("chunk_scan_backward_decays", [x, steps, decays, grad, scores], [ddecay], rows, chunk, chunk // 2, size)
    ddecay += ddecays[0] + ddecays[1]
    dA, dbias = torch.zeros_like(A), None if dt_bias is None else torch.zeros_like(dt_bias)
    run("chunk_cumsum_backward", [ddecay, dsteps, dt, A, dt_bias], [ddt, dA, *([] if dbias is None else [dbias])],
         4 * dt.numel(), 20 * dt.numel())  # fmt: skip
    return dA, dD, dbias


class _ChunkScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, dt_bias: Any, chunk: int) -> Any:
        out, decays = _chunk_forward(x, dt, A, B, C, D, dt_bias, chunk)
        ctx.save_for_backward(out, x, dt, decays, A, B, C, D, dt_bias)
        ctx.chunk = chunk
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        _, x, dt, _, A, B, C, D, dt_bias = ctx.saved_tensors
        dx, ddt, dB, dC = (torch.empty_like(part) for part in (x, dt, B, C))
        grad = rows_contiguous(grad)
        dA, dD, dbias = _chunk_backward(grad, x, dt, A, B, C, D, dt_bias, ctx.chunk, dx, ddt, dB, dC)
        return dx, ddt, dA, dB, dC, dD, dbias, None


class _SplitScan(torch.autograd.Function):
    """Keeps its input, the scan's output, the norm's and the weights; the convolution is made again in backward."""

    @staticmethod
    def forward(
        ctx: Any, zxbcdt: Any, conv_weight: Any, conv_bias: Any, dt_bias: Any, A: Any, D: Any, norm_weight: Any,
        out_weight: Any, out_bias: Any, chunk: int, head_size: int, groups: int,
    ) -> Any:  # fmt: skip
        ctx.sizes = chunk, D.shape[0], head_size, groups
        z, xBC, dt = _split(zxbcdt, ctx.sizes)
        x, B, C = _parts(convolve(xBC.transpose(1, 2), conv_weight, conv_bias).transpose(1, 2), ctx.sizes)
        scanned, _ = _chunk_forward(x, dt, A, B, C, D, dt_bias, chunk)
        del x, B, C
        normed, scale = torch.empty_like(scanned).flatten(2), None
        if norm_weight is not None:
            scale = scanned.new_empty(scanned.shape[0] * scanned.shape[1] * groups, dtype=torch.float32)
        written = [normed, *([] if scale is None else [scale])]
        run("gated_norm", [scanned, norm_weight, z], written, 8 * normed.numel(), 16 * normed.numel())
        out_weight, out_bias = low_precision(out_weight, out_bias)
        ctx.save_for_backward(
            zxbcdt, conv_weight, conv_bias, scanned, A, D, dt_bias, norm_weight, scale, out_weight, out_bias
        )
        if out_weight is None:
            return normed
        return torch.nn.functional.linear(normed.to(out_weight.dtype), out_weight, out_bias)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (zxbcdt, conv_weight, conv_bias, scanned, A, D, dt_bias, norm_weight, scale, out_weight,
         out_bias) = ctx.saved_tensors  # fmt: skip
        z, xBC, dt = _split(zxbcdt, ctx.sizes)
        convolved = convolve(xBC.transpose(1, 2), conv_weight, conv_bias)
        x, B, C = _parts(convolved.transpose(1, 2), ctx.sizes)
        dzxbcdt, dxBC = torch.empty_like(zxbcdt), torch.empty_like(convolved)
        dz, dxBC_given, ddt = _split(dzxbcdt, ctx.sizes)
        dx, dB, dC = _parts(dxBC.transpose(1, 2), ctx.sizes)
        dy = grad if out_weight is None else torch.nn.functional.linear(grad, out_weight.t())
        dscanned, again = torch.empty_like(scanned), torch.empty_like(scanned).flatten(2)
        dnorm = None if norm_weight is None else torch.zeros_like(norm_weight, dtype=torch.float32)
        written = [dscanned, dz, again, *([] if dnorm is None else [dnorm])]
        run("gated_norm_backward", [dy, scanned, norm_weight, scale, z], written, 16 * dy.numel(), 32 * dy.numel())
        dA, dD, dbias = _chunk_backward(dscanned, x, dt, A, B, C, D, dt_bias, ctx.sizes[0], dx, ddt, dB, dC)
        dout_weight = dout_bias = None
        if out_weight is not None:
            flat = grad.reshape(-1, grad.shape[-1])
            dout_weight = flat.t() @ again.view(-1, again.shape[-1])
            dout_bias = None if out_bias is None else flat.sum(0)
        gradients = convolution_gradients(xBC.transpose(1, 2), conv_weight, conv_bias, dxBC, dxBC_given.transpose(1, 2))
        return dzxbcdt, *gradients, dbias, dA, dD, dnorm, dout_weight, dout_bias, None, None, None


def _split(zxbcdt: Any, sizes: tuple[int, int, int, int]) -> Any:
    """Gate, what is convolved, and steps."""
    _, heads, head_size, _ = sizes
    width = heads * head_size
    return zxbcdt.split([width, zxbcdt.shape[-1] - width - heads, heads], dim=-1)


def _parts(xBC: Any, sizes: tuple[int, int, int, int]) -> tuple[Any, Any, Any]:
    """x by heads, and B and C by groups, of what was convolved."""
    _, heads, head_size, groups = sizes
    width = heads * head_size
    states_at = (xBC.shape[-1] - width) // 2
    x, B, C = xBC.split([width, states_at, states_at], dim=-1)
    return x.unflatten(-1, (heads, head_size)), B.unflatten(-1, (groups, -1)), C.unflatten(-1, (groups, -1))
