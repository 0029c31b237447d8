"""Calls that move memory: pointwise maths, copies, fills, random numbers, gathers, scatters, optimizer steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from calibrate.calls import make, tensor, transposed
from planner.call import Call, TensorSpec

ELEMENTS = (1 << 12, 1 << 16, 1 << 19, 1 << 21, 1 << 23, 1 << 25, 1 << 28)
LONGEST_ON_CHIP = 1024  # elements of a row that Inductor reduces without a loop
WIDTH = 1024  # of the last dimension, where a size is only a number of elements

# Pointwise operators by how many tensors of the size they read; `None` among further arguments stands for one more.
UNARY = [
    "gelu",
    "silu",
    "tanh",
    "sigmoid",
    "relu",
    "exp",
    "log",
    "rsqrt",
    "sqrt",
    "neg",
    "abs",
    "sin",
    "cos",
    "erf",
    "reciprocal",
    "leaky_relu",
    "elu",
    "hardswish",
    "log_sigmoid_forward",
    "softplus",
    "hardtanh",
    "logical_not",
    "sign",
    "isnan",
]
BACKWARD: dict[str, tuple[Any, ...]] = {
    "gelu_backward": (), "silu_backward": (), "tanh_backward": (), "sigmoid_backward": (), "threshold_backward": (0.0,),
    "leaky_relu_backward": (0.01, False), "hardswish_backward": (), "log_sigmoid_backward": (None,),
}  # fmt: skip
BINARY = (
    "add.Tensor",
    "mul.Tensor",
    "div.Tensor",
    "sub.Tensor",
    "add_.Tensor",
    "mul_.Tensor",
    "maximum.default",
    "eq.Tensor",
)
SCALAR: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("mul.Scalar", (0.5,)), ("add.Scalar", (1.0,)), ("pow.Tensor_Scalar", (2.0,)), ("pow.Tensor_Scalar", (3.0,)),
    ("div.Scalar", (2.0,)), ("clamp.default", (-1.0, 1.0)), ("gt.Scalar", (0.0,)),
)  # fmt: skip


def pointwise() -> Iterator[Call]:
    for number, (dtype, elements) in enumerate(itertools.product(("f32", "bf16", "f16"), ELEMENTS)):
        if dtype == "f16" and elements not in (1 << 21, 1 << 25):
            continue
        x = _rows(dtype, elements)
        names = UNARY if elements in (1 << 21, 1 << 25) else UNARY[:12:2] if number % 2 else UNARY[1:12:2]
        for name in names:
            yield make(f"{name}.default", x)
        for name, more in BACKWARD.items():
            yield make(f"{name}.default", x, x, *(x if item is None else item for item in more))
        for name in BINARY[:3] if elements < 1 << 19 else BINARY:
            yield make(name, x, x)
        for name, more in SCALAR:
            yield make(name, x, *more)
        mask = _rows("b8", elements)
        yield make("masked_fill.Scalar", x, mask, 0.0)
        yield make("where.self", mask, x, x)
        yield make("native_dropout_backward.default", x, mask, 1.1)
        yield make("mul.Tensor", x, TensorSpec(dtype, x.shape, (1, 0)))
        yield make("add.Tensor", x, tensor(dtype, x.shape[1]))
        yield make("addcmul.default", x, x, x)
        if elements <= 1 << 25:
            yield make("add.Tensor", x, transposed(dtype, *x.shape))
            yield make("mse_loss.default", x, x)
            yield make("tril.default", x)
            half = TensorSpec(dtype, (x.shape[0], x.shape[1] // 2), (x.shape[1], 1))
            yield make("mul.Tensor", half, half)
            yield make("neg.default", half)
    for elements in ELEMENTS:
        yield make("add.Tensor", _rows("i64", elements), 1)
        yield make("mul.Tensor", _rows("f32", elements), _rows("bf16", elements))
        yield make("ne.Scalar", _rows("i64", elements), -100)
    for elements in ELEMENTS[:4]:  # positions, buckets and masks
        places, mask = _rows("i64", elements), _rows("b8", elements)
        for name in ("sub.Tensor", "minimum.default", "eq.Tensor", "lt.Tensor", "ge.Tensor", "mul.Tensor"):
            yield make(name, places, places)
        for name in ("abs.default", "neg.default", "sign.default"):
            yield make(name, places)
        yield make("masked_fill.Scalar", places, mask, 0)
        yield make("bitwise_and.Tensor", mask, mask)
        yield make("bitwise_not.default", mask)
        yield make("floor.default", _rows("f32", elements))


def _rows(dtype: str, elements: int) -> TensorSpec:
    return tensor(dtype, elements // WIDTH, WIDTH)


def copy() -> Iterator[Call]:
    pairs = (
        ("bf16", "f32"),
        ("f32", "bf16"),
        ("f16", "f32"),
        ("f32", "f16"),
        ("i64", "f32"),
        ("b8", "f32"),
        ("f32", "b8"),
        ("bf16", "f16"),
    )
    for (source, target), elements in itertools.product(pairs, ELEMENTS):
        yield make("_to_copy.default", _rows(source, elements), dtype=target)
    for dtype, elements in itertools.product(("f32", "bf16"), ELEMENTS):
        x = _rows(dtype, elements)
        yield make("clone.default", x)
        yield make("copy_.default", x, x)
        yield make("cat.default", (x, x), 1)
        yield make("cat.default", (x, x, x), 0)
        yield make("constant_pad_nd.default", x, (0, 1), 0.0)
        yield make("slice_backward.default", x, (x.shape[0], 2 * WIDTH), 1, 0, WIDTH, 1)
        yield Call(
            "clone.default", (transposed(dtype, *x.shape),), (("memory_format", "torch.contiguous_format"),), (x,)
        )
        yield make("copy_.default", _rows("f32", elements), x)
        if elements >= 1 << 16:
            batch = max(1, elements // (128 * 16 * 64))
            heads = TensorSpec(dtype, (batch, 128, 16, 64), (128 * 1024, 64, 128 * 64, 1))
            yield Call(
                "clone.default",
                (heads,),
                (("memory_format", "torch.contiguous_format"),),
                (tensor(dtype, *heads.shape),),
            )
            images = TensorSpec(dtype, (batch, 64, 32, 64), (64 * 2048, 1, 64 * 64, 64))
            yield Call(
                "clone.default",
                (images,),
                (("memory_format", "torch.contiguous_format"),),
                (tensor(dtype, *images.shape),),
            )
            yield make("roll.default", tensor(dtype, batch, 32, 32, 128), (-3, -3), (1, 2))
            yield make("stack.default", (x, x), 1)
            yield make("repeat.default", x, (2, 1))
            yield make("select_backward.default", tensor(dtype, batch, 1024), (batch, 128, 1024), 1, 0)


def fill() -> Iterator[Call]:
    for dtype, elements in itertools.product(("f32", "bf16", "i64", "b8"), ELEMENTS):
        x = _rows(dtype, elements)
        if dtype in ("f32", "bf16"):
            yield make("fill_.Scalar", x, 1.0)
            yield make("zero_.default", x)
        yield make("zeros_like.default", x)
        yield make("ones_like.default", x)
    for elements in (512, 1 << 16, 1 << 21):
        yield Call("arange.default", (elements,), (("dtype", "i64"),), (tensor("i64", elements),))
        for dtype in ("f32", "bf16", "i64", "b8"):
            yield Call("zeros.default", ((elements,),), (("dtype", dtype),), (tensor(dtype, elements),))
            yield Call("ones.default", ((elements,),), (("dtype", dtype),), (tensor(dtype, elements),))
            yield make("new_zeros.default", tensor(dtype, 8), (elements,))


def random() -> Iterator[Call]:
    for dtype, elements in itertools.product(("f32", "bf16", "f16"), ELEMENTS):
        x = _rows(dtype, elements)
        yield make("native_dropout.default", x, 0.1, True)
        if dtype != "f16":
            yield make("bernoulli_.float", x, 0.5)
            yield make("normal_.default", x)
            yield make("uniform_.default", x)
            yield make("rand_like.default", x)
            yield make("randn_like.default", x)


def gather() -> Iterator[Call]:
    tables = ((30522, 768), (50257, 1024), (128256, 4096), (512, 768), (2, 1024), (1 << 20, 64), (1 << 22, 16))
    for dtype, (rows, width), picked in itertools.product(("f32", "bf16"), tables, (256, 4096, 32768)):
        yield make("embedding.default", tensor(dtype, rows, width), tensor("i64", 8, picked // 8))
    for dtype, rows, width in itertools.product(("f32", "bf16"), (512, 16384), (64, 1024, 4096)):
        x, places = tensor(dtype, rows, width), tensor("i64", rows)
        yield make("index_select.default", x, 0, places)
        yield make("index.Tensor", x, (places,))
        yield make("index.Tensor", x, (tensor("i64", rows), tensor("i64", rows)))
        yield make("gather.default", x, 1, tensor("i64", rows, 8))
    for dtype, (heads, rows, span) in itertools.product(
        ("f32", "bf16"), ((12, 128, 128), (96, 512, 512), (384, 512, 512))
    ):
        x = tensor(dtype, heads, rows, 2 * span)
        yield make("gather.default", x, 2, tensor("i64", heads, rows, span))
        spread = TensorSpec("i64", (heads, rows, span), (0, span, 1))
        yield make("gather.default", x, 2, spread)


def scatter() -> Iterator[Call]:
    tables = ((30522, 768), (50257, 1024), (128256, 4096), (512, 768), (2, 768), (1 << 20, 64), (1 << 22, 16))
    for dtype, (rows, width), picked in itertools.product(("f32", "bf16"), tables, (256, 4096, 32768)):
        gradient, places = tensor(dtype, 8, picked // 8, width), tensor("i64", 8, picked // 8)
        yield make("embedding_dense_backward.default", gradient, places, rows, -1, False)
    for dtype, rows, width in itertools.product(("f32", "bf16"), (512, 16384), (64, 1024, 4096)):
        x, places = tensor(dtype, rows, width), tensor("i64", rows)
        yield make("index_add.default", x, 0, places, x)
        yield make("index_put.default", x, (places,), x, True)
        yield make("index_put.default", x, (places,), x, False)
        yield make("scatter.src", x, 1, tensor("i64", rows, 8), tensor(dtype, rows, 8))
        yield make("scatter_add.default", x, 0, TensorSpec("i64", (rows, width), (1, 0)), x)
    for dtype, (heads, rows, span) in itertools.product(
        ("f32", "bf16"), ((12, 128, 128), (96, 512, 512), (384, 512, 512))
    ):
        x, source = tensor(dtype, heads, rows, 2 * span), tensor(dtype, heads, rows, span)
        yield make("scatter_add.default", x, 2, tensor("i64", heads, rows, span), source)
        yield make("scatter_add.default", x, 2, TensorSpec("i64", (heads, rows, span), (0, span, 1)), source)


# Elements of a model's tensors, repeated: a small net, BERT-like, GPT-like, a large layer stack.
MODELS: tuple[tuple[tuple[int, ...], int], ...] = (
    ((256,), 100), ((1 << 14,), 400), ((768, 768 * 768, 3072, 3072 * 768), 48), ((1024, 4096 * 1024), 72),
    ((2048, 2048 * 2048, 2048 * 5504), 48), ((4096 * 4096,), 32), ((50257 * 768,), 1), ((8, 64, 512), 500),
)  # fmt: skip
FOREACH: dict[str, tuple[int, tuple[Any, ...]]] = {
    "_foreach_mul_.Scalar": (1, (0.999,)), "_foreach_lerp_.Scalar": (2, (0.1,)),
    "_foreach_addcmul_.Scalar": (3, (0.001,)), "_foreach_sqrt.default": (1, ()), "_foreach_add_.Scalar": (1, (1e-8,)),
    "_foreach_add_.List": (2, ()), "_foreach_div_.List": (2, ()), "_foreach_norm.Scalar": (1, (2,)),
    "_foreach_zero_.default": (1, ()), "_foreach_add.List": (2, ()), "_foreach_sign.default": (1, ()),
}  # fmt: skip


def optimizer() -> Iterator[Call]:
    """Multi-tensor steps: fused Adam and SGD, and the kernels that the foreach implementations are made of."""
    settings = {
        "lr": 1e-4,
        "beta1": 0.9,
        "beta2": 0.999,
        "weight_decay": 0.01,
        "eps": 1e-8,
        "amsgrad": False,
        "maximize": False,
    }
    momentum = {
        "weight_decay": 0.0, "momentum": 0.9, "lr": 1e-3, "dampening": 0.0, "nesterov": False, "maximize": False,
        "is_first_step": False,
    }  # fmt: skip
    for dtype, (sizes, copies) in itertools.product(("f32", "bf16"), MODELS):
        model = tuple(tensor(dtype, size) for size in sizes * copies)
        steps = (tensor("f32"),) * len(model)
        yield Call("_fused_adamw_.default", (model, model, model, model, (), steps), tuple(settings.items()), ())
        yield Call("_fused_sgd_.default", (model, model, model), tuple(momentum.items()), ())
        for name, (lists, more) in FOREACH.items():
            results = {
                "_foreach_norm.Scalar": (tensor(dtype),) * len(model),
                "_foreach_add.List": model,
                "_foreach_sign.default": model,
            }
            yield Call(name, (*(model,) * lists, *more), (), results.get(name, ()))
        each = tuple(1.0 + place / len(model) for place in range(len(model)))
        yield Call("_foreach_div_.ScalarList", (model, each), (), ())
        yield Call("_foreach_addcdiv_.ScalarList", (model, model, model, each), (), ())
        yield Call("_foreach_mul_.Tensor", (model, tensor(dtype)), (), ())


def fused() -> Iterator[Call]:
    """Chains over one to four tensors: pointwise, with dropout, and with a normalisation of rows that fit on chip or
    do not."""
    for dtype, elements, parts in itertools.product(("bf16", "f32"), ELEMENTS[1:], (1, 2, 4)):
        for reduced in (1, 768, 4096, 65536):
            for instructions in (30, 90) if reduced == 1 else (40,):
                kept = max(1, elements // reduced)
                spec = TensorSpec(dtype, (kept * reduced,))
                facts = (("kept", kept), ("reduced", reduced), ("persistent", 1 < reduced <= LONGEST_ON_CHIP),
                         ("scattered", 0), ("instructions", instructions * kept * reduced))  # fmt: skip
                yield Call("rigplan.fused.default", ((spec,) * parts,), facts, (spec,))
