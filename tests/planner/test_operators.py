"""What a call asks of a device, held against torch's own FLOP counter and against arithmetic by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from planner.call import Call, TensorSpec
from planner.operators import FREE, KINDS, OPERATORS, SHAPE_FIELDS, UNKNOWN, base_name, describe

NAMES = {
    torch.float32: "f32", torch.bfloat16: "bf16", torch.int64: "i64", torch.bool: "b8", torch.int32: "i32",
    torch.uint8: "u8",
}  # fmt: skip


def spec(value: torch.Tensor) -> TensorSpec:
    return TensorSpec(NAMES[value.dtype], tuple(value.shape), None if value.is_contiguous() else tuple(value.stride()))


def plain(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return spec(value)
    return tuple(map(plain, value)) if isinstance(value, (list, tuple)) else value


class Recorder(TorchDispatchMode):
    """Keeps every aten call as the planner's trace would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        found = tuple(spec(item) for item in tree_leaves(result) if isinstance(item, torch.Tensor))
        name = str(function).removeprefix("aten.")
        self.calls.append(Call(name, tuple(map(plain, args)), tuple((kwargs or {}).items()), found))
        return result


def calls_of(work: Callable[[], object]) -> list[Call]:
    with Recorder() as recorder:
        work()
    return recorder.calls


def train(layer: torch.nn.Module, *sizes: int) -> Callable[[], object]:
    given = torch.randn(*sizes, requires_grad=True)
    return lambda: layer(given).sum().backward()


LAYERS = {
    "linear": train(torch.nn.Linear(96, 40), 7, 96),
    "batched linear": train(torch.nn.Linear(96, 40, bias=False), 3, 7, 96),
    "convolution": train(torch.nn.Conv2d(8, 12, 3, stride=2, padding=1), 2, 8, 17, 17),
    "one-dimensional convolution": train(torch.nn.Conv1d(8, 12, 5, padding=2), 2, 8, 30),
    "three-dimensional convolution": train(torch.nn.Conv3d(4, 6, 3), 2, 4, 7, 7, 7),
    "depthwise convolution": train(torch.nn.Conv2d(8, 8, 7, groups=8, padding=3), 2, 8, 14, 14),
    "transposed convolution": train(torch.nn.ConvTranspose2d(8, 12, 4, stride=2, padding=1), 2, 8, 9, 9),
    "strided pointwise convolution": train(torch.nn.Conv2d(16, 32, 1, stride=2), 2, 16, 14, 14),
}


@pytest.mark.parametrize("work", LAYERS.values(), ids=LAYERS.keys())
def test_flop_agree_with_torchs_counter_forward_and_backward(work: Callable[[], object]) -> None:
    with FlopCounterMode(display=False) as counter:
        work()
    ours = sum(describe(call).flop for call in calls_of(work))
    assert counter.get_total_flops() > 0
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.005)


def test_a_depthwise_weight_gradient_costs_what_its_forward_does() -> None:
    # torch's counter, and `flop` with it, takes the weight gradient of a grouped convolution as dense.
    work = train(torch.nn.Conv2d(8, 8, 7, groups=8, padding=3), 2, 8, 14, 14)
    forward, backward = (describe(call).executed_flop for call in calls_of(work) if call.name.startswith("convolution"))
    assert forward == 2 * 2 * 14 * 14 * 8 * 49
    assert backward == 2 * forward


def attention_call(causal: bool, backward: bool = False) -> Call:
    q, lse = TensorSpec("bf16", (2, 8, 512, 64)), TensorSpec("f32", (2, 8, 512))
    if backward:
        given = (q, q, q, q, q, lse, None, 0.0, causal, "flash")
        return Call("rigplan.attention_backward.default", given, (), (q, q, q))
    return Call("rigplan.attention_forward.default", (q, q, q, None, 0.0, causal, "flash"), (), (q, lse))


def test_attention_counts_the_full_square_as_torch_does_and_executes_half_of_it_when_causal() -> None:
    from torch.utils.flop_counter import sdpa_flop_count

    size = (2, 8, 512, 64)
    operator = describe(attention_call(causal=True))
    assert operator.flop == sdpa_flop_count(size, size, size)
    assert operator.executed_flop == operator.flop / 2
    assert describe(attention_call(causal=False)).executed_flop == operator.flop


def test_attention_backward_is_five_products_against_two() -> None:
    from torch.utils.flop_counter import sdpa_backward_flop_count

    size = (2, 8, 512, 64)
    operator = describe(attention_call(causal=False, backward=True))
    assert operator.flop == sdpa_backward_flop_count(size, size, size, size)
    assert operator.shape[SHAPE_FIELDS["attention"].index("backward")] == 1


def test_every_operator_of_a_small_training_step_is_known() -> None:
    torch.manual_seed(0)
    body = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.GroupNorm(2, 8), torch.nn.SiLU(), torch.nn.Upsample(scale_factor=2), torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(), torch.nn.Dropout(0.1), torch.nn.Linear(128, 32), torch.nn.LayerNorm(32), torch.nn.GELU(),
        torch.nn.Linear(32, 10),
    )  # fmt: skip
    table = torch.nn.Embedding(11, 32)
    optimizer = torch.optim.AdamW([*body.parameters(), *table.parameters()], foreach=True)

    def step() -> None:
        loss = torch.nn.functional.cross_entropy(body(torch.randn(4, 3, 16, 16)), torch.randint(0, 10, (4,)))
        (loss + table(torch.randint(0, 11, (4, 5))).cumsum(1).mean()).backward()
        torch.nn.utils.clip_grad_norm_(body.parameters(), 1.0)
        optimizer.step()

    calls = [call for call in calls_of(step) if not call.name.startswith("profiler.")]
    found = [(call.name, describe(call).kind) for call in calls]
    assert len(found) > 60
    assert [name for name, kind in found if kind == UNKNOWN] == []


def test_an_operator_nobody_knows_is_unknown_but_its_bytes_are_counted() -> None:
    x = TensorSpec("f32", (1000,))
    operator = describe(Call("no_such_thing.default", (x,), (), (x,)))
    assert (operator.kind, operator.bytes_read, operator.bytes_written) == (UNKNOWN, 4000, 4000)


def test_a_known_name_in_an_unreadable_form_is_unknown_and_does_not_raise() -> None:
    assert describe(Call("mm.default", (3, 4), (), ())).kind == UNKNOWN


def test_views_and_allocations_have_no_kernel() -> None:
    x = TensorSpec("f32", (4, 4))
    for name in ("empty.memory_format", "view.default", "transpose.int", "detach.default", "as_strided_.default"):
        assert describe(Call(name, (x,), (), (x,))).kind == FREE


def test_every_kind_described_is_a_priced_kind_or_free() -> None:
    x = TensorSpec("f32", (4, 8, 8, 8))
    kinds = {describe(Call(f"{name}.default", (x, x, x), (), (x,))).kind for name in OPERATORS}
    assert kinds <= KINDS | {FREE, UNKNOWN}
    assert len(kinds) > 12


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("add_.Tensor", "add"), ("_foreach_addcdiv_.ScalarList", "_foreach_addcdiv"), ("__and__.Tensor", "__and__"),
        ("rigplan.attention_forward.default", "rigplan.attention_forward"), ("addmm.default", "addmm"),
    ],
)  # fmt: skip
def test_in_place_and_overload_do_not_change_the_base_name(name: str, base: str) -> None:
    assert base_name(name) == base


def test_a_linear_layer_is_read_with_its_weight_transposed_and_its_alignment() -> None:
    x, weight = TensorSpec("bf16", (4096, 768)), TensorSpec("bf16", (768, 50265), (1, 768))
    call = Call("mm.default", (x, weight), (), (TensorSpec("bf16", (4096, 50265)),))
    facts = dict(zip(SHAPE_FIELDS["matmul"], describe(call).shape, strict=True))
    assert facts == {
        "batch": 1, "m": 4096, "n": 50265, "k": 768, "a_transposed": 0, "b_transposed": 1, "a_align": 16, "b_align": 16,
        "c_align": 2,
    }  # fmt: skip


def test_tf32_marks_products_in_fp32_and_nothing_else() -> None:
    x = TensorSpec("f32", (64, 64))
    assert describe(Call("mm.default", (x, x), (), (x,)), tf32=True).dtype == "tf32"
    assert describe(Call("add.Tensor", (x, x), (), (x,)), tf32=True).dtype == "f32"
    assert describe(Call("mm.default", (x, x), (), (x,))).dtype == "f32"


def test_an_embedding_reads_the_rows_it_picks_and_not_the_table() -> None:
    call = Call(
        "embedding.default", (TensorSpec("f32", (50257, 768)), TensorSpec("i64", (4, 512))), (),
        (TensorSpec("f32", (4, 512, 768)),),
    )  # fmt: skip
    operator = describe(call)
    assert operator.bytes_written == 4 * 512 * 768 * 4
    assert operator.bytes_read == operator.bytes_written + 4 * 512 * 8


def test_a_fused_adamw_step_reads_four_lists_and_writes_three() -> None:
    lists = ((TensorSpec("f32", (1000,)), TensorSpec("f32", (24,))),) * 4
    operator = describe(Call("_fused_adamw_.default", lists, (), ()))
    assert (operator.kind, operator.shape) == ("optimizer", (2, 1024))
    assert (operator.bytes_read, operator.bytes_written) == (4 * 4096, 3 * 4096)


@pytest.mark.parametrize(("stride", "code", "run"), [(None, 0, 512 * 1024), ((2048, 1), 1, 1024), ((1, 512), 2, 1)])
def test_a_copy_knows_whether_its_rows_lie_together(stride: tuple[int, int] | None, code: int, run: int) -> None:
    source, result = TensorSpec("f32", (512, 1024), stride), TensorSpec("f32", (512, 1024))
    assert describe(Call("clone.default", (source,), (), (result,))).shape == (512 * 1024, code, run)


def test_a_concatenation_of_a_strided_part_is_strided() -> None:
    whole, part = TensorSpec("bf16", (8, 64, 64)), TensorSpec("bf16", (8, 64, 64), (12288, 192, 1))
    result = TensorSpec("bf16", (8, 64, 128))
    dense = describe(Call("cat.default", ((whole, whole), -1), (), (result,)))
    strided = describe(Call("cat.default", ((whole, part), -1), (), (result,)))
    assert dense.shape == (8 * 64 * 128, 0, 8 * 64 * 128)
    assert strided.shape == (8 * 64 * 128, 1, 64)


def test_a_pointwise_kernel_says_what_it_broadcasts_and_converts() -> None:
    def shape(one: TensorSpec, two: TensorSpec | float) -> tuple[int, ...]:
        return describe(Call("mul.Tensor", (one, two), (), (whole,))).shape

    whole, half, row = TensorSpec("f32", (64, 512)), TensorSpec("bf16", (64, 512)), TensorSpec("f32", (512,))
    assert shape(whole, whole) == shape(whole, 0.5) == shape(whole, TensorSpec("f32", ())) == (64 * 512, 0, 0, 0)
    assert shape(whole, row) == (64 * 512, 0, 1, 0)
    assert shape(whole, half) == (64 * 512, 0, 0, 1)


def test_a_transposed_input_of_a_layer_norm_is_told_from_a_dense_one() -> None:
    dense, turned = TensorSpec("f32", (8, 256, 1024)), TensorSpec("f32", (8, 256, 1024), (262144, 1, 256))
    for given, code in ((dense, 0), (turned, 2)):
        call = Call("native_layer_norm.default", (given, (1024,), None, None, 1e-6), (), (dense,))
        assert describe(call).shape == (2048, 1024, code)


@pytest.mark.parametrize("groups", [1, 64])
def test_tf32_rounds_depthwise_convolutions_too(groups: int) -> None:
    # ConvNeXt on an H200: the weights' gradient of 96 channels on 56 x 56, channels last, takes
    # 7.3 ms in fp32 and 3.8 in TF32.
    image, weight = TensorSpec("f32", (8, 64, 28, 28)), TensorSpec("f32", (64, 64 // groups, 3, 3))
    call = Call(
        "convolution.default", (image, weight, None, (1, 1), (1, 1), (1, 1), False, (0, 0), groups), (), (image,)
    )
    assert describe(call, tf32=True).dtype == "tf32"


def test_a_convolution_knows_its_bias_and_dilation() -> None:
    image, weight, bias = TensorSpec("bf16", (8, 64, 1000)), TensorSpec("bf16", (64, 64, 2)), TensorSpec("bf16", (64,))
    result = TensorSpec("bf16", (8, 64, 992))
    call = Call("convolution.default", (image, weight, bias, (1,), (0,), (8,), False, (0,), 1), (), (result,))
    facts = dict(zip(SHAPE_FIELDS["convolution"], describe(call).shape, strict=True))
    assert (facts["bias"], facts["dilation"], facts["grad_weight"]) == (1, 8, 0)


def test_a_broadcast_input_is_read_once() -> None:
    wide, result = TensorSpec("f32", (512, 1024), (0, 1)), TensorSpec("f32", (512, 1024))
    assert describe(Call("clone.default", (wide,), (), (result,))).bytes_read == 4096


def test_an_lstm_counts_four_gates_in_both_directions() -> None:
    x, h = TensorSpec("f32", (50, 8, 64)), TensorSpec("f32", (2, 8, 128))
    setting = (1, 0.0, True, False)
    forward = describe(Call("rigplan.rnn_forward.default", ("lstm", x, (h, h), (), *setting), (), (x,)))
    assert forward.flop == 2 * 50 * 8 * 4 * 128 * (64 + 128) * 2
    given = (x, "lstm", x, (h, h), (), x, x, *setting)
    assert describe(Call("rigplan.rnn_backward.default", given, (), (x,))).flop == 2 * forward.flop


def test_experts_count_the_rows_of_all_groups_once() -> None:
    a, b = TensorSpec("bf16", (4096, 2048)), TensorSpec("bf16", (64, 2048, 1024))
    call = Call("_grouped_mm.default", (a, b, TensorSpec("i32", (64,))), (), (TensorSpec("bf16", (4096, 1024)),))
    assert describe(call).flop == 2 * 4096 * 2048 * 1024


@pytest.mark.parametrize(("length", "prime"), [(512, 2), (400, 5), (1000, 5), (1009, 1009)])
def test_a_transform_is_as_long_as_its_real_side_and_names_its_largest_prime(length: int, prime: int) -> None:
    real, half = TensorSpec("f32", (64, length)), TensorSpec("c64", (64, length // 2 + 1))
    forward = describe(Call("_fft_r2c.default", (real, (1,), 0, True), (), (half,)))
    back = describe(Call("_fft_c2r.default", (half, (1,), 0, length), (), (real,)))
    assert forward.shape == back.shape == (64, length, prime)
    assert forward.flop == back.flop == pytest.approx(5 * 64 * length * math.log2(length))


def test_fsdps_copies_move_what_they_copy_and_not_the_buffers_beside() -> None:
    low, full = 2, 4  # bytes
    shards = (TensorSpec("bf16", (3000,)), TensorSpec("bf16", (1000,)))
    whole = TensorSpec("bf16", (8000,))
    copy_in = Call("fsdp.all_gather_copy_in.default", (shards, whole, (3000, 1000), 4000, 0), (), (whole, whole))
    copy_out = Call("fsdp.split_with_sizes_copy.default", (whole, (3000, 1000), 1), (("out", (whole,)),), ())
    reduced = TensorSpec("f32", (2, 4000))
    scatter = Call("fsdp.chunk_cat.default", ((whole,), 0, 2), (("out", reduced),), ())
    cast = Call("_foreach_copy_.default", (shards, (TensorSpec("f32", (3000,)), TensorSpec("f32", (1000,)))), (), ())
    moved = [(found.bytes_read, found.bytes_written) for found in map(describe, (copy_in, copy_out, scatter, cast))]
    assert moved == [
        (4000 * low, 4000 * low),
        (8000 * low, 8000 * low),
        (8000 * low, 8000 * full),
        (4000 * full, 4000 * low),
    ]
