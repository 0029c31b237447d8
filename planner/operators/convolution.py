"""Convolutions and pooling: forward, and the two products of the backward pass."""

from __future__ import annotations

import math

from planner.call import Call, TensorSpec
from planner.operators.operator import (
    Describer,
    Operator,
    argument,
    by_bytes,
    channels_last,
    each,
    integers,
    positions,
    size,
    tensors,
)


def convolution(variant: str, call: Call) -> Operator:
    """One convolution of any dimension, transposed or not."""
    image, weight = tensors(call.arguments[0])[0], tensors(call.arguments[1])[0]
    settings = _settings(call, 3)
    result, bias = call.results[0], argument(call, 2, "bias")
    flop = _flop(image if settings[1] else result, weight)
    return _describe(variant, call, image, weight, result, settings, (0, 0, bias is not None), flop)


def convolution_backward(variant: str, call: Call) -> Operator:
    """The data gradient, the weight gradient, or both, as the output mask says."""
    gradient, image, weight = (tensors(call.arguments[place])[0] for place in range(3))
    settings = _settings(call, 4)
    mask = argument(call, 10, "output_mask", (True, True, True))
    wanted = tuple(int(bool(item)) for item in mask) if isinstance(mask, tuple) else (1, 1, 1)
    # torch's counter takes the weight gradient of a grouped convolution as dense; Operator.executed_flop does not.
    flop = (wanted[0] + wanted[1] * settings[2]) * _flop(image if settings[1] else gradient, weight)
    return _describe(variant, call, image, weight, gradient, settings, wanted, flop)


def cudnn_convolution(variant: str, call: Call) -> Operator:
    """cuDNN's and MIOpen's own entries: (input, weight, padding, stride, dilation, groups, ...)."""
    image, weight = tensors(call.arguments[0])[0], tensors(call.arguments[1])[0]
    transposed = "transpose" in variant
    stride = math.prod(integers(argument(call, 3, "stride"), (1,)))
    groups = integers(argument(call, 5, "groups"), (1,))[0]
    flop = _flop(image if transposed else call.results[0], weight)
    settings = (stride, int(transposed), groups, math.prod(integers(argument(call, 4, "dilation"), (1,))))
    return _describe(variant, call, image, weight, call.results[0], settings, (0, 0, 0), flop)


def pool(variant: str, call: Call) -> Operator:
    """Pooling forward or backward; the kernel's volume tells how often an input is read."""
    image, result = call.tensors[-1 if "backward" in variant else 0], call.results[0]
    larger, smaller = (result, call.tensors[0]) if "backward" in variant else (image, result)
    volume = max(1, round(larger.elements / max(smaller.elements, 1)))
    kernel = integers(argument(call, 2 if "backward" in variant else 1, "kernel_size"))
    if kernel and "adaptive" not in variant:
        volume = math.prod(kernel)
    shape = (image.elements, result.elements, volume, max(map(channels_last, call.tensors)))
    return by_bytes("pool", variant, call, shape)


def resample(variant: str, call: Call) -> Operator:
    """Interpolation: each thread goes through all planes (images times channels) at one position."""
    source, result = call.tensors[0], call.results[0]
    planes = math.prod(source.shape[:2])
    return by_bytes("resample", variant, call, (planes, positions(source), positions(result), channels_last(source)))


def _settings(call: Call, place: int) -> tuple[int, int, int, int]:
    """(product of the strides, transposed, groups, product of the dilations) of a convolution whose strides stand at
    `place`."""
    stride = math.prod(integers(argument(call, place, "stride"), (1,)))
    dilation = math.prod(integers(argument(call, place + 2, "dilation"), (1,)))
    groups = integers(argument(call, place + 5, "groups"), (1,))
    return stride, int(bool(argument(call, place + 3, "transposed", False))), groups[0], dilation


def _flop(spread: TensorSpec, weight: TensorSpec) -> float:
    """2 x images x positions x weights: `spread` is the side that every weight is applied at."""
    return 2.0 * spread.shape[0] * positions(spread) * weight.elements


def _describe(
    variant: str, call: Call, image: TensorSpec, weight: TensorSpec, result: TensorSpec,
    settings: tuple[int, int, int, int], wanted: tuple[int, ...], flop: float,
) -> Operator:  # fmt: skip
    """`wanted` says which of the gradients of input, weight and bias are asked for; going forward, whether there is a
    bias: it is added, and its gradient summed up, by a kernel of its own."""
    stride, transposed, groups, dilation = settings
    *gradients, bias = map(int, wanted)
    shape = (
        image.shape[0], image.shape[1], result.shape[1], positions(image), positions(result),
        math.prod(weight.shape[2:]), stride, groups, len(weight.shape) - 2, transposed, *gradients,
        channels_last(image), bias, dilation,
    )  # fmt: skip
    return Operator("convolution", variant, image.dtype, shape, flop, size(call.tensors), size(call.results))


OPERATORS: dict[str, Describer] = {
    "convolution": convolution, "_convolution": convolution, "convolution_overrideable": convolution,
    "convolution_backward": convolution_backward, "convolution_backward_overrideable": convolution_backward,
    **dict.fromkeys(
        ("cudnn_convolution", "cudnn_convolution_transpose", "miopen_convolution", "miopen_depthwise_convolution"),
        cudnn_convolution,
    ),
    **each(
        pool,
        """
        max_pool1d max_pool2d max_pool2d_with_indices max_pool2d_with_indices_backward
        max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool1d avg_pool2d avg_pool2d_backward
        avg_pool3d avg_pool3d_backward adaptive_avg_pool1d _adaptive_avg_pool2d
        _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward adaptive_max_pool2d
        adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward fractional_max_pool2d
        fractional_max_pool2d_backward max_unpool2d im2col col2im unfold_backward
        """,
    ),
    **each(
        resample,
        """
        upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward
        upsample_nearest3d upsample_nearest3d_backward _upsample_nearest_exact1d
        _upsample_nearest_exact1d_backward _upsample_nearest_exact2d _upsample_nearest_exact2d_backward
        upsample_linear1d upsample_linear1d_backward upsample_bilinear2d upsample_bilinear2d_backward
        upsample_bicubic2d upsample_bicubic2d_backward upsample_trilinear3d upsample_trilinear3d_backward
        _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa
        _upsample_bicubic2d_aa_backward grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d
        grid_sampler_3d_backward affine_grid_generator affine_grid_generator_backward pixel_shuffle
        pixel_unshuffle channel_shuffle reflection_pad1d reflection_pad1d_backward reflection_pad2d
        reflection_pad2d_backward replication_pad1d replication_pad1d_backward replication_pad2d
        replication_pad2d_backward replication_pad3d replication_pad3d_backward reflection_pad3d
        reflection_pad3d_backward
        """,
    ),
}  # fmt: skip
