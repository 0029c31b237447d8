"""Calls that compute: matrix products, convolutions, attention, recurrent nets, at the sizes that training meets."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

from calibrate.calls import heads_inside, make, tensor, transposed
from planner.call import ITEM_BYTES, Call, TensorSpec

MOST_FLOP = {"bf16": 1.2e13, "f16": 4e12, "f32": 6e11}  # of one call: at most some 20 ms on a fast GPU
MOST_BYTES = 6 << 30  # of one tensor: a calibration also runs on cards of 24 GB, where the largest are left out

TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
HIDDEN = (512, 768, 1024, 1600, 2048, 2560, 4096, 5120, 8192)
LAYER_SHAPES = ((1, 1), (3, 1), (4, 1), (1, 4), (2.6875, 1))  # (output, input) widths over hidden: qkv, mlp up and down
VOCABULARIES = (30522, 32000, 50257, 50265, 50304, 65536, 128100, 128256, 151936, 256000)


def matmul() -> Iterator[Call]:
    """Layers of transformers in their three products, output heads, odd and thin shapes, and batches of small ones."""
    for dtype, keep in (("bf16", 3), ("f16", 20), ("f32", 4)):
        for number, (m, n, k) in enumerate(_matmul_shapes()):
            if (
                number % keep == 0
                and 2.0 * m * n * k <= MOST_FLOP[dtype]
                and max(m * n, n * k, m * k) * 2 <= MOST_BYTES
            ):
                yield from linear(dtype, m, n, k, bias=number % 4 == 0)
    for dtype, keep in (("bf16", 1), ("f32", 2), ("f16", 4)):
        for number, (batch, rows, columns, inner) in enumerate(BATCHED):
            if number % keep == 0 and batch * rows * columns * ITEM_BYTES[dtype] <= MOST_BYTES:
                yield make("bmm.default", tensor(dtype, batch, rows, inner), transposed(dtype, batch, inner, columns))
                yield make("bmm.default", tensor(dtype, batch, rows, columns), tensor(dtype, batch, columns, inner))
                yield make("bmm.default", transposed(dtype, batch, columns, rows), tensor(dtype, batch, rows, inner))


def linear(dtype: str, tokens: int, out: int, inner: int, *, bias: bool) -> Iterator[Call]:
    """One linear layer: y = x W^T, its data gradient and its weight gradient, laid out as autograd asks for them."""
    x, weight = tensor(dtype, tokens, inner), transposed(dtype, inner, out)
    yield make("addmm.default", tensor(dtype, out), x, weight) if bias else make("mm.default", x, weight)
    yield make("mm.default", tensor(dtype, tokens, out), tensor(dtype, out, inner))
    yield make("mm.default", transposed(dtype, out, tokens), tensor(dtype, tokens, inner))


def _matmul_shapes() -> list[tuple[int, int, int]]:
    layers = [
        (tokens, int(hidden * wide), int(hidden * deep))
        for tokens, hidden, (wide, deep) in itertools.product(TOKENS, HIDDEN, LAYER_SHAPES)
    ]
    heads = list(itertools.product((1024, 4096, 16384), VOCABULARIES, (512, 768, 1024, 2048, 4096)))
    chance = random.Random(0)

    def odd(low: int, high: int) -> int:
        """Log-uniform, a multiple of 1 to 64."""
        unit = chance.choice((1, 2, 4, 8, 16, 64))
        return max(unit, round(math.exp(chance.uniform(math.log(low), math.log(high))) / unit) * unit)

    awkward = [(odd(8, 70000), odd(8, 20000), odd(8, 20000)) for _ in range(160)]
    thin = list(itertools.product((1, 8, 64, 197, 2049), (16, 768, 1000, 4096), (8, 64, 768, 4096)))
    tall = [
        (1 << power, n, k) for power in (17, 19, 21) for n, k in ((8, 64), (64, 64), (96, 96), (384, 96), (128, 512))
    ]
    adapters = [
        shape
        for tokens, rank, hidden in itertools.product((2048, 9216, 16384), (8, 16, 64), (1024, 2048, 4096, 11008))
        for shape in ((tokens, rank, hidden), (tokens, hidden, rank))
    ]
    chosen = layers + heads + awkward + thin + tall + adapters
    chance.shuffle(chosen)
    return chosen


# (batch of heads, rows, columns, inner) of attention by plain products, of windows and of experts' small batches.
BATCHED = [
    (batch, rows, rows, inner)
    for batch, (rows, inner) in itertools.product(
        (12, 96, 512, 4096),
        ((49, 32), (128, 64), (197, 64), (512, 64), (512, 128), (1024, 80), (2048, 64), (2049, 128)),
    )
    if batch * rows * rows <= 1 << 31
] + [(8, 4096, 1024, 2048), (16, 1000, 300, 777), (64, 256, 1024, 256), (1024, 64, 64, 256), (3, 5000, 5000, 63)]


def grouped_matmul() -> Iterator[Call]:
    """Experts: rows split among groups by their ends, forward and data gradient, and the weight gradient."""
    for dtype in ("bf16",):
        for groups, hidden, inner, rows in itertools.product(
            (8, 32, 64), (1024, 2048, 4096), (768, 1408, 4096), (2048, 8192, 32768)
        ):
            if 2.0 * rows * hidden * inner > MOST_FLOP[dtype] or groups * hidden * inner * 2 > MOST_BYTES:
                continue
            ends = tensor("i32", groups)
            x, weight = tensor(dtype, rows, hidden), transposed(dtype, groups, hidden, inner)
            yield make("_grouped_mm.default", x, weight, ends)
            if (groups, rows) in ((8, 8192), (32, 8192), (64, 32768)):
                yield make(
                    "_grouped_mm.default", tensor(dtype, rows, inner), tensor(dtype, groups, inner, hidden), ends
                )
                yield make("_grouped_mm.default", transposed(dtype, inner, rows), x, ends)


# (channels in, size of the image, channels out, kernel, stride, padding, groups) in one dimension or several.
Layer = tuple[int, tuple[int, ...], int, int, int, int, int]
LAYERS: tuple[Layer, ...] = (
    # ResNet
    (3, (224, 224), 64, 7, 2, 3, 1), (64, (56, 56), 64, 1, 1, 0, 1), (64, (56, 56), 64, 3, 1, 1, 1),
    (64, (56, 56), 256, 1, 1, 0, 1), (256, (56, 56), 64, 1, 1, 0, 1), (256, (56, 56), 512, 1, 2, 0, 1),
    (128, (56, 56), 128, 3, 2, 1, 1), (128, (28, 28), 128, 3, 1, 1, 1), (512, (28, 28), 128, 1, 1, 0, 1),
    (256, (14, 14), 256, 3, 1, 1, 1), (256, (14, 14), 1024, 1, 1, 0, 1), (1024, (14, 14), 2048, 1, 2, 0, 1),
    (512, (7, 7), 512, 3, 1, 1, 1), (2048, (7, 7), 512, 1, 1, 0, 1), (256, (28, 28), 256, 3, 2, 1, 1),
    # patches
    (3, (224, 224), 768, 16, 16, 0, 1), (3, (224, 224), 96, 4, 4, 0, 1), (96, (56, 56), 192, 2, 2, 0, 1),
    (3, (512, 512), 64, 7, 4, 3, 1), (3, (224, 224), 1024, 14, 14, 0, 1),
    # depthwise and grouped
    (96, (56, 56), 96, 7, 1, 3, 96), (192, (28, 28), 192, 7, 1, 3, 192), (384, (14, 14), 384, 7, 1, 3, 384),
    (768, (7, 7), 768, 7, 1, 3, 768), (32, (112, 112), 32, 3, 1, 1, 32), (144, (56, 56), 144, 3, 2, 1, 144),
    (256, (64, 64), 256, 3, 1, 1, 256), (256, (28, 28), 256, 3, 1, 1, 32),
    # U-Nets and segmentation
    (64, (256, 256), 64, 3, 1, 1, 1), (128, (128, 128), 128, 3, 1, 1, 1), (4, (64, 64), 320, 3, 1, 1, 1),
    (320, (64, 64), 320, 3, 1, 1, 1), (640, (32, 32), 640, 3, 1, 1, 1), (1280, (16, 16), 1280, 3, 1, 1, 1),
    (2560, (16, 16), 1280, 3, 1, 1, 1), (320, (64, 64), 4, 3, 1, 1, 1), (768, (128, 128), 150, 1, 1, 0, 1),
    # sound
    (1, (160000,), 512, 10, 5, 0, 1), (512, (31999,), 512, 3, 2, 0, 1), (512, (1999,), 512, 2, 2, 0, 1),
    (768, (499,), 768, 128, 1, 64, 16), (80, (3000,), 384, 3, 1, 1, 1), (384, (3000,), 384, 3, 2, 1, 1),
    (64, (16000,), 128, 2, 1, 1, 1), (128, (16000,), 64, 1, 1, 0, 1), (1536, (1024,), 1536, 4, 1, 3, 1536),
    # video and volumes
    (3, (16, 224, 224), 768, 16, 16, 0, 1), (64, (16, 56, 56), 64, 3, 1, 1, 1), (32, (64, 64, 64), 32, 3, 1, 1, 1),
    (128, (8, 28, 28), 256, 3, 2, 1, 1),
)  # fmt: skip
TRANSPOSED: tuple[Layer, ...] = (
    (512, (32, 32), 256, 2, 2, 0, 1), (128, (64, 64), 64, 2, 2, 0, 1), (256, (28, 28), 256, 4, 2, 1, 1),
    (256, (4000,), 128, 16, 8, 4, 1),
)  # fmt: skip


def _odd_layers() -> list[tuple[int, Layer]]:
    """Layers at widths and sizes between those of the well-known nets, each with a batch: log-uniform, plain,
    strided, depthwise and grouped, of images and of sound."""
    chance = random.Random(1)

    def between(low: int, high: int, unit: int) -> int:
        return max(unit, round(math.exp(chance.uniform(math.log(low), math.log(high))) / unit) * unit)

    found: list[tuple[int, Layer]] = []
    for kernel, stride, kind in itertools.product((1, 3, 5, 7), (1, 2), ("plain", "plain", "depthwise", "grouped")):
        for _ in range(4):
            channels, side = between(24, 1024, 8), between(7, 160, 1)
            groups = {"plain": 1, "depthwise": channels, "grouped": 8}[kind]
            out = channels if kind == "depthwise" else between(24, 1024, 8)
            found.append((between(4, 192, 4), (channels, (side, side), out, kernel, stride, kernel // 2, groups)))
    for kernel, stride in ((1, 1), (2, 1), (3, 1), (3, 2), (9, 1), (10, 5)):
        for _ in range(3):
            channels, length = between(32, 1024, 16), between(500, 32000, 1)
            found.append((between(2, 32, 2), (channels, (length,), between(32, 1024, 16), kernel, stride, 0, 1)))
    return found


def convolution() -> Iterator[Call]:
    """Forward and backward of layers of vision, sound and video nets, by batch."""
    for number, (batch, layer) in enumerate(_odd_layers()):
        yield from convolution_pair(("bf16", "f32", "bf16", "f16")[number % 4], batch, layer)
    for dtype, keep in (("bf16", 1), ("f32", 1), ("f16", 5)):
        cases = itertools.product((1, 8, 32, 128), (*LAYERS, *TRANSPOSED))
        for number, (batch, layer) in enumerate(cases):
            if number % keep == 0 and (dtype == "bf16" or number % 2 == 0):
                yield from convolution_pair(dtype, batch, layer)
    for layer in LAYERS[1:12:3]:
        yield from convolution_pair("bf16", 32, layer, channels_last=True)


def convolution_pair(dtype: str, batch: int, layer: Layer, *, channels_last: bool = False) -> Iterator[Call]:
    """A convolution and its backward pass: both gradients, or only the weight's where the input is the image itself."""
    channels, size, out, kernel, stride, padding, groups = layer
    is_transposed = layer in TRANSPOSED
    dims = len(size)
    x = tensor(dtype, batch, channels, *size)
    shape = (channels, out // groups) if is_transposed else (out, channels // groups)
    weight = tensor(dtype, *shape, *(kernel,) * dims)
    if channels_last:
        x, weight = _channels_last(x), _channels_last(weight)
    settings = ((stride,) * dims, (padding,) * dims, (1,) * dims, is_transposed, (0,) * dims, groups)
    forward = make("convolution.default", x, weight, tensor(dtype, out), *settings)
    spatial = math.prod(forward.results[0].shape[2:]) if not is_transposed else math.prod(size)
    flop = 2.0 * batch * spatial * math.prod(weight.shape)
    if flop > MOST_FLOP[dtype] or max(x.elements, forward.results[0].elements) * ITEM_BYTES[dtype] > MOST_BYTES // 4:
        return
    yield forward
    wanted = (channels > 4, True, True)
    yield make("convolution_backward.default", forward.results[0], x, weight, (out,), *settings, wanted)


def _channels_last(spec: TensorSpec) -> TensorSpec:
    batch, channels, height, width = spec.shape
    return TensorSpec(
        spec.dtype, (batch, channels, height, width), (height * width * channels, 1, width * channels, channels)
    )


# (query heads, key heads, head size)
HEADS = ((12, 12, 64), (16, 16, 80), (16, 16, 96), (32, 32, 128), (32, 8, 128), (8, 8, 256))
LENGTHS = (128, 197, 512, 1024, 1500, 2048, 2049, 4096, 8192)
# (kernel, dtype, every how many-th case)
ATTENTION = (
    ("cudnn", "bf16", 1),
    ("flash", "bf16", 5),
    ("efficient", "f32", 3),
    ("efficient", "bf16", 11),
    ("cudnn", "f16", 13),
)


def attention() -> Iterator[Call]:
    """Fused attention, forward and backward, by kernel, heads, length, causal or not, with dropout, with a mask."""
    for kernel, dtype, keep in ATTENTION:
        cases = itertools.product(HEADS, LENGTHS, (2048, 32768), (True, False))
        for number, ((heads, kv_heads, size), length, tokens, causal) in enumerate(cases):
            grouped_or_wide = (kernel != "flash" and size > 128) or (kernel == "efficient" and kv_heads != heads)
            batch = max(1, tokens // length)
            flop = 14.0 * batch * heads * length * length * size
            if number % keep == 0 and not grouped_or_wide and flop <= 2 * MOST_FLOP[dtype]:
                yield from attention_pair(kernel, dtype, batch, heads, kv_heads, length, size, causal=causal)
    for kernel, dtype in (("flash", "bf16"), ("cudnn", "bf16"), ("efficient", "f32")):
        for batch, length in ((4, 512), (32, 512), (8, 2048)):
            yield from attention_pair(kernel, dtype, batch, 12, 12, length, 64, causal=False, dropout=0.1)
    for kernel, dtype in (("cudnn", "bf16"), ("efficient", "f32"), ("efficient", "bf16")):
        for batch, length in ((4, 128), (32, 512), (8, 2048)):
            yield from attention_pair(kernel, dtype, batch, 12, 12, length, 64, causal=False, masked=True)
    for kernel, dtype in (("cudnn", "bf16"), ("efficient", "f32")):
        for batch, queries, keys in ((8, 128, 1500), (32, 128, 512), (4, 4096, 77)):
            yield from attention_pair(kernel, dtype, batch, 16, 16, keys, 64, causal=False, queries=queries)


def attention_pair(
    kernel: str, dtype: str, batch: int, heads: int, kv_heads: int, length: int, size: int, *,
    causal: bool, dropout: float = 0.0, masked: bool = False, queries: int | None = None,
) -> Iterator[Call]:  # fmt: skip
    """One attention and its backward pass."""
    rows = queries or length
    q, k = heads_inside(dtype, batch, heads, rows, size), heads_inside(dtype, batch, kv_heads, length, size)
    mask = TensorSpec(dtype, (batch, 1, rows, length)) if masked else None
    if mask is not None and heads > 1:
        mask = TensorSpec(dtype, (batch, heads, rows, length), (rows * length, 0, length, 1))
    forward = make("rigplan.attention_forward.default", q, k, k, mask, dropout, causal, kernel)
    yield forward
    out, lse = forward.results
    yield make("rigplan.attention_backward.default", out, q, k, k, out, lse, mask, dropout, causal, kernel, False)


def rnn() -> Iterator[Call]:
    """LSTM, GRU and plain recurrent layers, forward and backward."""
    cases = (
        ("lstm", 64, 35, 650, 650, 2, 0.5, False), ("lstm", 32, 128, 512, 512, 2, 0.0, False),
        ("lstm", 128, 256, 256, 256, 1, 0.0, True), ("lstm", 64, 512, 1024, 1024, 2, 0.0, False),
        ("lstm", 16, 1000, 320, 320, 4, 0.0, True), ("lstm", 256, 64, 1500, 1500, 2, 0.65, False),
        ("lstm", 20, 70, 1150, 1150, 1, 0.0, False), ("lstm", 512, 50, 128, 256, 1, 0.0, False),
        ("gru", 64, 128, 512, 512, 2, 0.0, False), ("gru", 32, 800, 1312, 800, 5, 0.0, True),
        ("gru", 128, 50, 256, 1024, 1, 0.0, False), ("rnn_tanh", 64, 128, 512, 512, 1, 0.0, False),
        ("rnn_relu", 64, 128, 256, 256, 2, 0.0, False), ("lstm", 8, 256, 512, 512, 1, 0.0, False),
        ("lstm", 64, 256, 512, 1024, 1, 0.0, False), ("lstm", 32, 256, 768, 768, 3, 0.1, False),
        ("lstm", 128, 128, 1024, 2048, 2, 0.0, False), ("lstm", 256, 100, 300, 512, 2, 0.0, True),
        ("lstm", 16, 128, 2048, 2048, 1, 0.0, False), ("gru", 16, 400, 256, 512, 3, 0.0, True),
        ("gru", 64, 256, 1024, 1024, 1, 0.0, False), ("gru", 256, 64, 512, 2048, 1, 0.0, False),
    )  # fmt: skip
    for dtype, case in itertools.product(("f32", "bf16", "f16"), cases):
        yield from rnn_pair(dtype, *case)


def rnn_pair(
    dtype: str, mode: str, batch: int, steps: int, width: int, hidden: int, layers: int, dropout: float, both: bool
) -> Iterator[Call]:
    """One recurrent net and its backward pass, batch first."""
    directions, gates = 2 if both else 1, {"lstm": 4, "gru": 3}.get(mode, 1)
    state = tensor(dtype, layers * directions, batch, hidden)
    weights = [
        part
        for layer, _ in itertools.product(range(layers), range(directions))
        for part in (
            tensor(dtype, gates * hidden, width if layer == 0 else hidden * directions),
            tensor(dtype, gates * hidden, hidden),
            tensor(dtype, gates * hidden),
            tensor(dtype, gates * hidden),
        )
    ]
    states = (state, state) if mode == "lstm" else (state,)
    given = mode, tensor(dtype, batch, steps, width), states, tuple(weights)
    settings = layers, dropout, both, True
    forward = make("rigplan.rnn_forward.default", *given, *settings)
    y, reserve = forward.results[0], forward.results[-1]
    yield forward
    yield make("rigplan.rnn_backward.default", y, *given, y, reserve, *settings)
