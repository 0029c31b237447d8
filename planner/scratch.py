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
from planner.memory import RESULT, Workspace

MIB = 1 << 20
Groups = tuple[tuple[int, ...], ...]
# cuBLAS takes a workspace for each thread that multiplies, the caller's and autograd's
# (aten/cuda/CublasHandlePool.cpp); cuBLASLt, which adds a bias in the same kernel, one of its own.
CUBLAS_WORKSPACE = {True: 32 * MIB, False: 8 * MIB + 128 * 1024}  # Hopper and later; before
CUBLASLT_WORKSPACE = 1 * MIB
# Bytes at which the rows of a convolution by 1 must start to be read as they are.
CONVOLUTION_ALIGNMENT, FILTER_GRADIENT_ALIGNMENT = 8, 16
# Multiply-adds for each element read or written from which a convolution by 1 gains more from channels last than the
# copies cost: between 205 (1024 to 256 channels of a ResNet-50) and 256 (512 to 512 of a U-Net) in 16 bit on an H200;
# in TF32 they stay as they are.
WORTH_A_COPY = 230
TILE = 128  # rows and columns of a weight's gradient that one thread block sums
# Of an embedding's gradient: rows up to which they are added one by one, rows in a partial sum, lists of all rows.
EMBEDDING_UNSORTED, EMBEDDING_ROWS, EMBEDDING_LISTS = 3072, 10, 6
FEW_CHANNELS, SMALL_FILTER = 4, 9  # channels and places of a filter, fewer and up to which an image is read as it is
OFFSETS_END = 2**31 - 1  # bytes that a kernel with 32-bit offsets reaches
FEWEST_SLICES, SLICE_TERMS = 3, 12288  # of a sum in 16 bit, and what one slice has at least
SLICE_ROWS = 2048  # places below which a sum is not cut further
RNN_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
PRODUCTS = frozenset({"mm.default", "addmm.default", "bmm.default", "baddbmm.default"})
RNNS = frozenset({"rigplan.rnn_forward.default"})
RNN_RUN_AHEAD, RNN_WORKSPACE = 16, 24 * MIB  # steps; bytes, in 16 bit
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
    """Blocks that a call allocates and gives back, in bytes: groups one after another, a group's blocks at once. Where
    the call's results are born among them, RESULT stands for each."""
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
    """Partial sums of a reduction over rows that is spread over thread blocks (aten/native/cuda/Reduce.cuh).

    A source too large for 32-bit offsets is halved until it is not, and summed piece after piece.
    """
    source = call.tensors[0]
    result = call.results[0]
    rows, columns = _rows_columns(source, result)
    pieces = 1
    while _bytes(source) > pieces * OFFSETS_END and rows > 1:
        rows, pieces = -(-rows // 2), 2 * pieces
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
    return () if blocks <= 1 else ((4 * columns * blocks * block_x * vector,),) * pieces


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
    """Layer norm, softmax and the 2d loss read plain rows: an input that is not contiguous is copied first."""
    source = call.tensors[0]
    return () if source.stride is None else ((_bytes(source),),)


def _embedding_backward(call: Call, device: Device) -> Groups:
    """Many rows are sorted by their place, summed in fp32 by tens, and these sums then by place: room for as many sums
    as there can be (aten/native/cuda/EmbeddingBackwardKernel.cu). A gradient that is not contiguous is copied."""
    grad, indices = call.tensors[:2]
    rows, places, copied = indices.elements, call.results[0].shape[0], _row_copy(call, device)
    if rows <= EMBEDDING_UNSORTED:
        return copied
    sums = rows // EMBEDDING_ROWS + min(rows, places)
    sorting = (rows * ITEM_BYTES[indices.dtype],) * EMBEDDING_LISTS
    return ((*sum(copied, ()), *sorting, sums * grad.shape[-1] * ITEM_BYTES["f32"]),)


def _group_norm(call: Call, _: Device) -> Groups:
    """A scale and a shift for each sample and channel, in fp32 (aten/native/cuda/group_norm_kernel.cu)."""
    samples, channels = call.tensors[0].shape[:2]
    return ((4 * samples * channels,) * 2,)


def _convolution(call: Call, device: Device) -> Groups:
    """cuDNN's tensor-core kernels read channels last: copies of what they read and write lie in the workspace."""
    source, weight = call.tensors[:2]
    if weight.shape[1] < FEW_CHANNELS and math.prod(weight.shape[2:]) <= SMALL_FILTER:
        return ()  # a U-Net's first convolution on an H200, in 16 bit and in TF32: read as it is
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
    of a U-Net on an H200, here 14). 16-bit kernels keep the sums of all slices but one, for convolutions by 1 two
    (ResNet-50's third stage: 32.63 MiB).
    """
    groups = _transformed(source, grad, weight, arguments, device, aligned_bytes=FILTER_GRADIENT_ALIGNMENT)
    if not groups:
        return ()
    sums = 0
    if weight.dtype == "f32":
        tiles = -(-weight.shape[0] // TILE) * -(-weight.elements // weight.shape[0] // TILE)
        slices = min(device.sm_count // tiles, grad.elements // grad.shape[1] // SLICE_ROWS)
        sums = slices * weight.elements if slices > 1 else 0
    elif math.prod(weight.shape[2:]) == 1:
        sums = 2 * weight.elements
    else:
        sums = _partial_sums(weight, grad.elements // grad.shape[1], device.sm_count)
    ((size,),) = groups
    return ((size + sums * ITEM_BYTES["f32"],),)


def _partial_sums(weight: TensorSpec, terms: int, sm_count: int) -> int:
    """Elements of a weight's gradient that 16-bit kernels sum apart, over `terms` places of all samples.

    A tile of the result is of one place of the filter, or of several where channels are few. What fills the device is
    cut into slices of enough terms, and all but one are kept apart; a result of many tiles is not cut. Learned from a
    ResNet-34, a ResNet-50, a U-Net and a wav2vec 2.0 on an H200.
    """
    outside, inside, *kernel = weight.shape
    width, places = _padded(inside, weight.dtype, read=True) // ITEM_BYTES[weight.dtype], math.prod(kernel)
    columns = places * -(-width // TILE) if 2 * width >= TILE else -(-places * width // TILE)
    slices = sm_count // (-(-outside // TILE) * columns)
    return 0 if slices < FEWEST_SLICES else min(slices - 1, terms // SLICE_TERMS) * outside * width * places


def _rnn(call: Call, _: Device) -> Groups:
    """A copy of what lies samples first with steps first, and cuDNN's workspace; the results are born between.

    In fp32 the gates of one layer before and after the recurrence (2 % above what an LSTM took on an H200). In 16 bit,
    exactly: the gates of a layer and RNN_RUN_AHEAD steps more, its states and one more, the weights without biases, and
    a constant. The backward takes it twice, for the gradients of input and of weights
    (aten/native/cudnn/RNN.cpp).
    """
    given = call.tensors
    forward = call.name.startswith("rigplan.rnn_forward")
    mode, source, state = call.arguments[0 if forward else 1], given[0 if forward else 1], given[1 if forward else 2]
    samples_first = bool(call.arguments[-1])
    samples, steps = source.shape[:2] if samples_first else (source.shape[1], source.shape[0])
    gates, hidden, item = RNN_GATES[mode], state.shape[-1], ITEM_BYTES[source.dtype]
    workspace = 2 * gates * samples * steps * hidden * item
    if item == 2:
        weights = sum(_bytes(tensor) for tensor in given if len(tensor.shape) == 2)
        rows = gates * (steps + RNN_RUN_AHEAD) + steps + 1
        workspace = rows * samples * hidden * item + weights + RNN_WORKSPACE
    copied = (_bytes(source),) if samples_first else ()
    all_but_last = (RESULT,) * (len(call.results) - 1)
    if forward:
        return ((*copied, *all_but_last, workspace, RESULT),)
    gradient = (_bytes(given[0]),) if samples_first else ()
    return (*gradient, *copied, *all_but_last, workspace), (*copied, RESULT, workspace)


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
    (a plain matmul) and whose channels are not too many, and for torch's own depthwise kernels.
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
    outside, inside = weight.shape[:2]
    worth = weight.dtype != "f32" and outside * inside > WORTH_A_COPY * (outside + inside)
    if pointwise and math.prod(stride) == 1 and image_bytes % aligned_bytes == 0 and not worth:
        return ()
    kernel = 0 if pointwise else _padded_bytes(weight, read=True)
    return ((_padded_bytes(source, read=True) + _padded_bytes(result) + kernel,),)


def _padded_bytes(tensor: TensorSpec, *, read: bool = False) -> int:
    """Of [n, channels, ...] with the channels of each place padded."""
    samples, channels, *places = tensor.shape
    return samples * _padded(channels, tensor.dtype, read=read) * math.prod(places)


def _padded(channels: int, dtype: str, *, read: bool = False) -> int:
    """Bytes of the channels of one place: rounded up to 16; of the few channels of an fp16 image that is read, to 8
    (the first convolutions of a ResNet-50 in fp16 and of a ResNet-34 in bf16 on an H200)."""
    item = ITEM_BYTES[dtype]
    aligned = 8 if read and dtype == "f16" and channels <= FEW_CHANNELS else 16
    return -(-channels * item // aligned) * aligned


def _channels_last(tensor: TensorSpec) -> bool:
    return tensor.stride is not None and len(tensor.shape) > 2 and tensor.stride[1] == 1 and tensor.shape[1] > 1


def _bytes(tensor: TensorSpec) -> int:
    return tensor.elements * ITEM_BYTES[tensor.dtype]


RULES: dict[str, Callable[[Call, Device], Groups]] = {
    "rigplan.attention_backward.default": _attention_backward,
    "sum.dim_IntList": _column_sum,
    "embedding_dense_backward.default": _embedding_backward,
    "native_layer_norm.default": _row_copy,
    "_softmax.default": _row_copy,
    "_log_softmax.default": _row_copy,
    "nll_loss2d_forward.default": _row_copy,
    "native_group_norm.default": _group_norm,
    "rigplan.rnn_forward.default": _rnn,
    "rigplan.rnn_backward.default": _rnn,
    "convolution.default": _convolution,
    "convolution_backward.default": _convolution_backward,
}
