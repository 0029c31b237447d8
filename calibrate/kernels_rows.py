"""Calls that work along rows or over neighbours: normalisation, softmax, losses, reductions, sorts, pooling."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from calibrate.calls import make, tensor
from planner.call import ITEM_BYTES, Call, TensorSpec

MOST_BYTES = 4 << 30  # of one tensor

MOST_SCANNED = 1 << 27  # elements
MOST_SORTED = 1 << 23
LENGTHS = (16, 64, 256, 1024, 2048, 4096, 16384, 65536, 1 << 18)
BETWEEN_ROWS, BETWEEN_LENGTHS = (2, 16, 128, 1024, 16384, 32768, 65536), (24, 100, 128, 512, 1536, 8192, 32768)

ROWS = (256, 2048, 16384, 65536)
WIDTHS = (96, 512, 768, 1024, 2049, 4096, 8192)


def layer_norm() -> Iterator[Call]:
    for dtype, rows, width in itertools.product(("f32", "bf16", "f16"), (*ROWS, 401408), WIDTHS):
        if rows * width > 1 << 29 or (dtype == "f16" and rows != 16384):
            continue
        x, scale = tensor(dtype, rows, width), tensor(dtype, width)
        forward = make("native_layer_norm.default", x, (width,), scale, scale, 1e-5)
        moment = tensor("f32", rows, 1)
        yield Call(forward.name, forward.arguments, (), (x, moment, moment))
        wanted = (True, True, True)
        yield make("native_layer_norm_backward.default", x, x, (width,), moment, moment, scale, scale, wanted)
        if width in (1024, 4096):
            yield make("_fused_rms_norm.default", x, (width,), scale, 1e-6)
            yield make("_fused_rms_norm_backward.default", x, x, (width,), moment, scale, (True, True))


def group_norm() -> Iterator[Call]:
    shapes = ((320, 64), (640, 32), (1280, 16), (1280, 8), (128, 256), (64, 56))
    for dtype, batch, (channels, side) in itertools.product(("f32", "bf16"), (1, 8, 32), shapes):
        x, scale = tensor(dtype, batch, channels, side, side), tensor(dtype, channels)
        given = batch, channels, side * side, 32
        yield make("native_group_norm.default", x, scale, scale, *given, 1e-5)
        moment = tensor(dtype, batch, 32)
        yield make("native_group_norm_backward.default", x, x, moment, moment, scale, *given, (True, True, True))


def batch_norm() -> Iterator[Call]:
    shapes = (
        (64, (112, 112)), (64, (56, 56)), (256, (56, 56)), (128, (28, 28)), (512, (28, 28)), (1024, (14, 14)),
        (512, (7, 7)), (2048, (7, 7)), (768, (128, 128)), (64, (256, 256)), (128, (4000,)), (64, (8, 56, 56)),
    )  # fmt: skip
    for dtype, batch, (channels, size) in itertools.product(("f32", "bf16", "f16"), (1, 8, 32, 128), shapes):
        x, moment = tensor(dtype, batch, channels, *size), tensor("f32", channels)
        if x.elements * ITEM_BYTES[dtype] > MOST_BYTES // 2 or (dtype == "f16" and batch != 32):
            continue
        yield from batch_norm_pair(x, moment)
        if batch == 32 and dtype == "bf16" and len(size) == 2:
            yield from batch_norm_pair(_channels_last(x), moment)


def batch_norm_pair(x: TensorSpec, moment: TensorSpec) -> Iterator[Call]:
    """Batch normalisation with fixed moments, in training, and its backward pass."""
    for training in (False, True):
        yield make("native_batch_norm.default", x, moment, moment, moment, moment, training, 0.1, 1e-5)
    wanted = (True, True, True)
    yield make("native_batch_norm_backward.default", x, x, *(moment,) * 5, True, 1e-5, wanted)


def softmax() -> Iterator[Call]:
    scores = [
        (heads * rows, rows) for heads, rows in itertools.product((12, 192, 1024), (49, 128, 197, 512, 1024, 2049))
    ]
    vocabularies = [
        (rows, v) for rows, v in itertools.product((512, 4096, 16384), (1000, 30522, 50257, 128256, 250112))
    ]
    for number, (dtype, (rows, length)) in enumerate(itertools.product(("f32", "bf16", "f16"), scores + vocabularies)):
        x = tensor(dtype, rows, length)
        if x.elements * 4 > MOST_BYTES or (dtype == "f16" and number % 4):
            continue
        logits = length > 2049 or length == 1000
        name = "_log_softmax" if logits else "_softmax"
        wide = dtype != "f32"
        out = tensor("f32", rows, length)
        yield Call(f"{name}.default", (x, 1, wide), (), (out,)) if wide else make(f"{name}.default", x, 1, False)
        if not logits and wide:
            yield make(f"{name}.default", x, 1, False)
            yield make(f"{name}_backward_data.default", x, x, 1, dtype)
        yield Call(f"{name}_backward_data.default", (out, out, 1, dtype), (), (x,))
    for dtype, (batch, length, inner) in itertools.product(
        ("f32", "bf16"), ((8, 150, 16384), (8, 21, 65536), (32, 197, 12))
    ):
        x = tensor(dtype, batch, length, inner)
        yield make("_log_softmax.default", x, 1, False)
        yield make("_log_softmax_backward_data.default", x, x, 1, dtype)


def loss() -> Iterator[Call]:
    for rows, classes, dtype in itertools.product(
        (64, 512, 4096, 16384), (2, 1000, 30522, 50257, 128256), ("f32", "bf16")
    ):
        scores, target, total = tensor(dtype, rows, classes), tensor("i64", rows), tensor(dtype)
        if scores.elements * 4 > MOST_BYTES or (dtype == "bf16" and rows != 4096):
            continue
        yield make("nll_loss_forward.default", scores, target, None, 1, -100)
        yield make("nll_loss_backward.default", total, scores, target, None, 1, -100, total)
    for batch, classes, side in (
        (1, 19, 512), (2, 150, 128), (4, 150, 512), (8, 21, 256), (8, 150, 128), (16, 150, 128), (32, 2, 256),
    ):  # fmt: skip
        scores, target, total = (
            tensor("f32", batch, classes, side, side),
            tensor("i64", batch, side, side),
            tensor("f32"),
        )
        yield make("nll_loss2d_forward.default", scores, target, None, 1, -100)
        yield make("nll_loss2d_backward.default", total, scores, target, None, 1, -100, total)


def reduction() -> Iterator[Call]:
    for dtype, rows, width in itertools.product(("f32", "bf16"), (64, 2048, 16384, 262144), (64, 768, 4096, 50257)):
        x = tensor(dtype, rows, width)
        if x.elements * ITEM_BYTES[dtype] > MOST_BYTES:
            continue
        yield make("sum.dim_IntList", x, (0,), True)
        yield make("mean.dim", x, (-1,), True)
        yield make("sum.dim_IntList", x, (1,), True)
        if dtype == "f32":
            yield make("sum.default", x)
            yield make("linalg_vector_norm.default", x)
            yield make("amax.default", x, (1,))
        if width <= 4096 and rows >= 2048:
            yield make("argmax.default", x, 1)
            y = tensor(dtype, 16, rows // 16, width)
            yield make("sum.dim_IntList", y, (0, 1))
            yield make("mean.dim", y, (1,))
    for dtype, batch, channels, side in itertools.product(("f32", "bf16"), (8, 64), (96, 768), (7, 56)):
        x = tensor(dtype, batch, channels, side, side)
        yield make("mean.dim", x, (-1, -2), True)
        yield make("sum.dim_IntList", x, (0, 2, 3), True)
        yield make("var.correction", x, (1,), correction=0, keepdim=True)


def scan() -> Iterator[Call]:
    for dtype, rows, length in itertools.product(("i64", "f32", "bf16"), (1, 8, 64, 512, 4096, 65536), LENGTHS):
        if rows * length <= MOST_SCANNED:
            yield make("cumsum.default", tensor(dtype, rows, length), 1)
    for dtype, rows, length in itertools.product(("f32", "bf16"), BETWEEN_ROWS, BETWEEN_LENGTHS):
        if rows * length <= MOST_SCANNED:
            yield make("cumsum.default", tensor(dtype, rows, length), 1)
    for rows, length in itertools.product((1, 8, 32), (128, 512, 2048, 8192)):  # positions from a mask
        for dtype in ("b8", "i32"):
            x, places = tensor(dtype, rows, length), tensor("i64", rows, length)
            yield Call("cumsum.default", (x, 1), (), (places,))
    for rows, length, inner in itertools.product((4, 16, 64, 512), (64, 200, 512, 1024, 2048), (8, 64, 256, 768)):
        for dtype in ("i64", "f32"):
            if rows * length * inner <= MOST_SCANNED:
                yield make("cumsum.default", tensor(dtype, rows, length, inner), 1)
    for rows, length, inner in ((8, 197, 1), (64, 512, 1), (4096, 64, 1), (8, 256, 24), (64, 512, 64), (4, 2048, 768)):
        shape = (rows, length, inner) if inner > 1 else (rows, length)
        yield make("cumprod.default", tensor("f32", *shape), 1)


def sort() -> Iterator[Call]:
    for dtype, rows, length in itertools.product(("f32", "bf16", "i64"), (1, 8, 64, 512, 8192, 65536), LENGTHS):
        if rows * length <= MOST_SORTED:
            yield make("sort.default", tensor(dtype, rows, length))
    chosen = itertools.product((64, 512, 2048, 16384, 32768), ((8, 2), (32, 4), (64, 8), (128, 8), (256, 8)))
    vocabularies = itertools.product((8, 64), ((32000, 50), (50257, 50), (128256, 50)))
    for dtype, (rows, (length, kept)) in itertools.product(("f32", "bf16"), (*chosen, *vocabularies)):
        yield make("topk.default", tensor(dtype, rows, length), kept)


def fft() -> Iterator[Call]:
    lengths = (128, 400, 512, 1000, 1024, 2000, 4096, 16384, 65536)  # speech frames are 400; 1000 is no power of two
    for rows, length in itertools.product((16, 64, 512, 4096, 65536), lengths):
        if rows * length > MOST_SCANNED:
            continue
        half = tensor("c64", rows, length // 2 + 1)
        yield make("_fft_r2c.default", tensor("f32", rows, length), (1,), 0, True)
        yield make("_fft_c2r.default", half, (1,), 0, length)
        yield make("_fft_c2c.default", half, (1,), 0, True)


def ctc() -> Iterator[Call]:
    for (steps, targets), batch, classes in itertools.product(
        ((99, 20), (199, 40), (499, 80), (499, 120), (800, 150), (1500, 300)), (2, 8, 16, 32), (32, 256, 1000)
    ):
        scores, target = tensor("f32", steps, batch, classes), tensor("i64", batch, targets)
        lengths = (steps,) * batch, (targets,) * batch
        losses, alpha = tensor("f32", batch), tensor("f32", batch, steps, 2 * targets + 1)
        yield Call("_ctc_loss.default", (scores, target, *lengths), (), (losses, alpha))
        yield Call("_ctc_loss_backward.default", (losses, scores, target, *lengths, losses, alpha, 0), (), (scores,))


def pool() -> Iterator[Call]:
    cases = ((64, 112, 3, 2, 1), (128, 128, 2, 2, 0), (64, 256, 2, 2, 0), (512, 28, 3, 1, 1), (96, 54, 3, 2, 0))
    for dtype, batch, (channels, side, kernel, stride, padding) in itertools.product(
        ("f32", "bf16"), (1, 8, 64), cases
    ):
        x = tensor(dtype, batch, channels, side, side)
        window = (kernel,) * 2, (stride,) * 2, (padding,) * 2
        forward = make("max_pool2d_with_indices.default", x, *window)
        out, indices = forward.results
        yield forward
        yield make("max_pool2d_with_indices_backward.default", out, x, *window, (1, 1), False, indices)
        averaged = make("avg_pool2d.default", x, *window)
        yield averaged
        yield make("avg_pool2d_backward.default", averaged.results[0], x, *window, False, True, None)
    for dtype, batch, channels in itertools.product(("f32", "bf16"), (8, 128), (512, 2048)):
        x = tensor(dtype, batch, channels, 14, 14)
        yield make("_adaptive_avg_pool2d.default", x, (6, 6))
        yield make("_adaptive_avg_pool2d_backward.default", tensor(dtype, batch, channels, 6, 6), x)


def resample() -> Iterator[Call]:
    cases = (
        (256, 16, 32), (256, 32, 128), (768, 64, 128), (1280, 16, 32), (640, 32, 64), (512, 28, 56), (128, 56, 112),
        (150, 128, 512), (21, 64, 512), (3, 256, 224), (64, 128, 256), (256, 64, 64), (512, 14, 28), (19, 128, 1024),
        (2, 32, 512), (64, 16, 128), (256, 8, 256), (512, 64, 32), (96, 224, 56),
    )  # fmt: skip
    for dtype, batch, (channels, side, wide), last in itertools.product(
        ("f32", "bf16", "f16"), (1, 8, 32), cases, (False, True)
    ):
        x, out = tensor(dtype, batch, channels, side, side), tensor(dtype, batch, channels, wide, wide)
        if (last and batch != 8) or (dtype == "f16" and (last or batch != 8)):
            continue
        if last:
            x, out = _channels_last(x), _channels_last(out)
        if out.elements * ITEM_BYTES[dtype] > MOST_BYTES // 4:
            continue
        size, shape = (wide, wide), (batch, channels, side, side)
        yield Call("upsample_nearest2d.default", (x, size, None, None), (), (out,))
        yield Call("upsample_nearest2d_backward.default", (out, size, shape, None, None), (), (x,))
        yield Call("upsample_bilinear2d.default", (x, size, False, None, None), (), (out,))
        yield Call("upsample_bilinear2d_backward.default", (out, size, shape, False, None, None), (), (x,))
    for channels, side, wide in ((768, 14, 14), (768, 14, 24), (384, 16, 37), (1024, 37, 16)):
        x, out = tensor("f32", 1, channels, side, side), tensor("f32", 1, channels, wide, wide)
        yield make("upsample_bicubic2d.default", x, (wide, wide), False, None, None)
        yield make("upsample_bicubic2d_backward.default", out, (wide, wide), tuple(x.shape), False, None, None)


def _channels_last(spec: TensorSpec) -> TensorSpec:
    _, channels, height, width = spec.shape
    return TensorSpec(spec.dtype, spec.shape, (channels * height * width, 1, channels * width, channels))
