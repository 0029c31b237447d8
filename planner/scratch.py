"""Scratch: what CUDA's libraries and kernels allocate besides the tensors of a trace.

Two kinds: workspaces that a library takes once and keeps, and buffers that live inside one call. Both pass through
torch's caching allocator, so they count as allocated memory. Learned from allocator histories of real steps
(`calibrate.history`), and computed here as the kernels compute them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from planner.call import ITEM_BYTES, Call, TensorSpec
from planner.memory import Workspace

MIB = 1 << 20
Groups = tuple[tuple[int, ...], ...]
# cuBLAS takes a workspace for each thread that multiplies, the caller's and autograd's
# (aten/cuda/CublasHandlePool.cpp); cuBLASLt, which adds a bias in the same kernel, one of its own.
CUBLAS_WORKSPACE = {True: 32 * MIB, False: 8 * MIB + 128 * 1024}  # Hopper and later; before
CUBLASLT_WORKSPACE = 1 * MIB
# Bytes at which the rows of a convolution by 1 must start to be read as they are.
CONVOLUTION_ALIGNMENT, FILTER_GRADIENT_ALIGNMENT = 8, 16
TILE = 128  # rows and columns of a weight's gradient that one thread block sums
SLICE_ROWS = 2048  # places below which a sum is not cut further
RNN_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
PRODUCTS = frozenset({"mm.default", "addmm.default", "bmm.default", "baddbmm.default"})
RNNS = frozenset({"rigplan.rnn_forward.default"})
RNN_RANDOM_STATE = 24  # bytes for each thread of the device: cuDNN's random numbers for dropout in recurrent nets
PRODUCTS_WITH_BIAS = frozenset({"addmm.default"})


@dataclass(frozen=True, slots=True)
class Device:
    """What of a GPU decides the size of scratch buffers."""

    capability: tuple[int, int]
    sm_count: int
    threads_per_sm: int = 2048
    tf32: bool = True  # cuDNN may round fp32 to tf32: torch's default, off under precision fp32


def held(device: Device) -> tuple[Workspace, ...]:
    """Blocks that libraries take at their first product and keep."""
    size = CUBLAS_WORKSPACE[device.capability >= (9, 0)]
    caller = (
        Workspace(size, PRODUCTS, backward=False),
        Workspace(CUBLASLT_WORKSPACE, PRODUCTS_WITH_BIAS, backward=False),
    )
    states = Workspace(device.sm_count * device.threads_per_sm * RNN_RANDOM_STATE, RNNS, backward=False)
    return (*caller, states, Workspace(size, PRODUCTS, backward=True))


def during(call: Call, device: Device) -> Groups:
    """Blocks that a call allocates and gives back, in bytes: groups one after another, a group's blocks at once."""
    rule = RULES.get(call.name)
    return () if rule is None else rule(call, device)


def _attention_backward(call: Call, _: Device) -> Groups:
    """cuDNN and flash sum dQ in fp32 beside a row sum; with grouped heads dK and dV exist once per query head first."""
    q, k = call.tensors[1:3]  # after the gradient
    batch, heads, rows, size = q.shape
    rounded = -(-rows // 128) * 128
    sums = batch * heads * rounded * 4
    queries = batch * heads * rounded * size * 4
    grouped = 0 if k.shape[1] == heads else 2 * batch * heads * k.shape[2] * size * ITEM_BYTES[k.dtype]
    return ((queries + sums,),) if not grouped else ((queries + sums, grouped),)


def _column_sum(call: Call, device: Device) -> Groups:
    """Partial sums of a reduction over rows that is spread over thread blocks (aten/native/cuda/Reduce.cuh)."""
    source = call.tensors[0]
    result = call.results[0]
    rows, columns = _rows_columns(source, result)
    if rows <= 1 or columns <= 1:
        return ()
    vector = 4 if columns % 4 == 0 else 2 if columns % 2 == 0 else 1
    threads = 512 // vector
    block_x = min(_power_below(max(1, columns // vector)), 32)
    block_y = min(_power_below(rows), threads // block_x)
    block_x = min(_power_below(max(1, columns // vector)), threads // block_y)
    each = -(-rows // block_y)
    grid = -(-(columns // vector) // block_x)
    target = device.sm_count * (device.threads_per_sm // (block_x * block_y))
    if (each < block_y * 16 and each < 256) or grid > target:
        return ()
    blocks = max(min(-(-target // grid), -(-each // 16)), -(-each // 256))
    return () if blocks <= 1 else ((4 * columns * blocks * block_x * vector,),)


def _rows_columns(source: TensorSpec, result: TensorSpec) -> tuple[int, int]:
    """Rows summed and columns kept, when leading dimensions of a contiguous tensor are reduced; else (0, 0)."""
    columns = result.elements
    if source.stride is not None or columns == 0 or source.elements % columns:
        return 0, 0
    kept = 1
    for size in reversed(source.shape):
        if kept == columns:
            break
        kept *= size
    return (source.elements // columns, columns) if kept == columns else (0, 0)


def _power_below(value: int) -> int:
    return 1 << (max(1, value).bit_length() - 1)


def _row_copy(call: Call, _: Device) -> Groups:
    """Layer norm and the 2d loss read plain rows: an input that is not contiguous is copied first."""
    source = call.tensors[0]
    return () if source.stride is None else ((_bytes(source),),)


def _group_norm(call: Call, _: Device) -> Groups:
    """A scale and a shift for each sample and channel, in fp32 (aten/native/cuda/group_norm_kernel.cu)."""
    samples, channels = call.tensors[0].shape[:2]
    return ((4 * samples * channels,) * 2,)


def _convolution(call: Call, device: Device) -> Groups:
    """cuDNN's tensor-core kernels read channels last: copies of what they read and write lie in the workspace."""
    source, weight = call.tensors[:2]
    return _transformed(source, call.results[0], weight, call.arguments, device)


def _convolution_backward(call: Call, device: Device) -> Groups:
    """The gradients of input, then weight; an incoming gradient that is not contiguous is copied before."""
    grad, source, weight = call.tensors[:3]
    wanted = call.arguments[-1]
    copied = () if grad.stride is None or _channels_last(grad) else (_bytes(grad),)
    passes: Groups = ()
    if wanted[0]:
        passes += _transformed(source, grad, weight, call.arguments[1:], device)
    if wanted[1]:
        passes += _filter_gradient(source, grad, weight, call.arguments[1:], device)
    return tuple(copied + blocks for blocks in passes) or ((copied,) if copied else ())


def _filter_gradient(
    source: TensorSpec, grad: TensorSpec, weight: TensorSpec, arguments: tuple[Any, ...], device: Device
) -> Groups:
    """A product over all places of all samples, summed in fp32.

    With few tiles of the result, fp32 kernels sum it in slices, as many as fill the device (18 for 128 x 128 x 3 x 3
    of a U-Net on an H200, here 14). 16-bit kernels slice by other rules; for convolutions by 1 they hold the sum twice
    (ResNet-50's third stage: 32.63 MiB).
    """
    groups = _transformed(source, grad, weight, arguments, device, aligned_bytes=FILTER_GRADIENT_ALIGNMENT)
    if not groups:
        return ()
    sums = 0
    if weight.dtype == "f32":
        tiles = -(-weight.shape[0] // TILE) * -(-weight.elements // weight.shape[0] // TILE)
        slices = min(device.sm_count // tiles, grad.elements // grad.shape[1] // SLICE_ROWS)
        sums = slices if slices > 1 else 0
    elif math.prod(weight.shape[2:]) == 1:
        sums = 2
    ((size,),) = groups
    return ((size + sums * weight.elements * ITEM_BYTES["f32"],),)


def _rnn(call: Call, _: Device) -> Groups:
    """A copy of the input with steps first, and cuDNN's workspace: the gates of one layer before and after the
    recurrence (2 % above what an LSTM took on an H200)."""
    given = call.tensors
    forward = call.name.startswith("rigplan.rnn_forward")
    mode, source, state = call.arguments[0 if forward else 1], given[0 if forward else 1], given[1 if forward else 2]
    elements = math.prod(source.shape[:2]) * state.shape[-1] * 2 * RNN_GATES[mode]
    copied = (_bytes(source),) if call.arguments[-1] else ()
    return ((*copied, elements * ITEM_BYTES[source.dtype]),)


def _transformed(
    source: TensorSpec,
    result: TensorSpec,
    weight: TensorSpec,
    arguments: tuple[Any, ...],
    device: Device,
    aligned_bytes: int = CONVOLUTION_ALIGNMENT,
) -> Groups:
    """Input, output and weights with channels last and padded to 16 bytes: one block. `arguments` start at the input.

    None in full fp32 (kernels without tensor cores read channels first), for a convolution by 1 whose rows are aligned
    (a plain matmul), and for torch's own depthwise kernels.
    """
    stride, groups = arguments[3], arguments[-1] if isinstance(arguments[-1], int) else arguments[-2]
    depthwise = groups > 1 and groups == source.shape[1]
    tensor_cores = weight.dtype in ("bf16", "f16") or (
        weight.dtype == "f32" and device.tf32 and device.capability >= (8, 0)
    )
    if depthwise or _channels_last(source) or not tensor_cores:
        return ()
    pointwise = math.prod(weight.shape[2:]) == 1
    image_bytes = math.prod(source.shape[2:]) * ITEM_BYTES[source.dtype]
    if pointwise and math.prod(stride) == 1 and image_bytes % aligned_bytes == 0:
        return ()
    kernel = 0 if pointwise else _padded_bytes(weight)
    return ((_padded_bytes(source) + _padded_bytes(result) + kernel,),)


def _padded_bytes(tensor: TensorSpec) -> int:
    """Of [n, channels, ...] with the channels of each place rounded up to 16 bytes."""
    samples, channels, *places = tensor.shape
    row = -(-channels * ITEM_BYTES[tensor.dtype] // 16) * 16
    return samples * row * math.prod(places)


def _channels_last(tensor: TensorSpec) -> bool:
    return tensor.stride is not None and len(tensor.shape) > 2 and tensor.stride[1] == 1 and tensor.shape[1] > 1


def _bytes(tensor: TensorSpec) -> int:
    return tensor.elements * ITEM_BYTES[tensor.dtype]


RULES: dict[str, Callable[[Call, Device], Groups]] = {
    "rigplan.attention_backward.default": _attention_backward,
    "sum.dim_IntList": _column_sum,
    "native_layer_norm.default": _row_copy,
    "nll_loss2d_forward.default": _row_copy,
    "native_group_norm.default": _group_norm,
    "rigplan.rnn_forward.default": _rnn,
    "rigplan.rnn_backward.default": _rnn,
    "convolution.default": _convolution,
    "convolution_backward.default": _convolution_backward,
}
