"""Replay: recorded calls run again with random and legal arguments."""

import pytest
import torch

from calibrate import calls, gpu_only, replay
from calibrate.calls import heads_inside, make, tensor, transposed
from calibrate.legal import values_of
from calibrate.pool import NORMAL, POSITIVE, RandomPool, Values, pool_of, span_elements
from calibrate.replay import NotReplayable, call_bytes, rotation_sets, runnable
from planner.call import Call, TensorSpec
from planner.operators import KINDS, describe

SMALL_BYTES = 3 << 20  # of tensors and results together
ONLY_ON_GPU = {"_fused_rms_norm_backward.default"}


def _pool() -> RandomPool:
    return RandomPool(torch.device("cpu"))


def _smallest_of(calls: list[Call]) -> list[Call]:
    """The smallest fp32 (else any) call of each operator that a cpu can run in no time."""
    smallest: dict[str, tuple[float, Call]] = {}
    for call in calls:
        size = call_bytes(call) + replay.result_bytes(call)
        if call.name not in ONLY_ON_GPU and size < smallest.get(call.name, (SMALL_BYTES, None))[0]:
            smallest[call.name] = size, call
    return [call for _, call in smallest.values()]


FEWEST = {"attention": 0, "grouped_matmul": 0, "rnn": 0}  # their sweep has nothing small: small ones stand below


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_the_sweep_replays(kind: str, kernel_calls: dict[str, list[Call]]) -> None:
    small = _smallest_of(kernel_calls[kind])
    assert len(small) >= FEWEST.get(kind, 1)
    for call in small:
        runnable(call, "cpu", sets=2)()


def _recurrent(mode: str) -> list[Call]:
    from calibrate.kernels_dense import rnn_pair

    return list(rnn_pair("f32", mode, 3, 5, 8, 16, 2, 0.0, True))


SMALL = [
    *_recurrent("lstm"),
    *_recurrent("gru"),
    *_recurrent("rnn_tanh"),
    make("_grouped_mm.default", tensor("bf16", 64, 32), tensor("bf16", 4, 32, 16), tensor("i32", 4)),
    make("index.Tensor", tensor("f32", 10, 20), (None, tensor("i64", 7))),
    make("index.Tensor", tensor("i64", 10, 20), (tensor("i64", 7),)),
    make("gather.default", tensor("i64", 1, 512), 1, tensor("i64", 1, 64)),
    Call("arange.default", (16,), (("dtype", "i64"),), (tensor("i64", 16),)),
    make("_to_copy.default", tensor("bf16", 64, 32), dtype="f32"),
    Call(
        "clone.default",
        (transposed("f32", 8, 4),),
        (("memory_format", "torch.contiguous_format"),),
        (tensor("f32", 8, 4),),
    ),
    make("expand_copy.default", TensorSpec("f32", (4, 8), (0, 1)), (4, 8)),
    Call("_foreach_add_.Scalar", ((tensor("f32", 4), tensor("f32", 5)), 1.0), (), ()),
]


@pytest.mark.parametrize("call", SMALL, ids=lambda call: call.name)
def test_a_small_call_replays(call: Call) -> None:
    runnable(call, "cpu", sets=3)()


@pytest.mark.parametrize("causal", [True, False])
def test_attention_replays_forward_and_backward(causal: bool) -> None:
    q = heads_inside("f32", 2, 4, 16, 8)
    forward = make("rigplan.attention_forward.default", q, q, q, None, 0.0, causal, "flash")
    out, lse = forward.results
    backward = make("rigplan.attention_backward.default", out, q, q, q, out, lse, None, 0.0, causal, "flash", False)
    runnable(forward, "cpu", sets=1)()
    runnable(backward, "cpu", sets=1)()


@pytest.mark.parametrize("mask", [tensor("f32", 2, 1, 20, 20), tensor("b8", 2, 1, 1, 20)], ids=["bias", "padding"])
def test_a_mask_becomes_a_bias_of_full_shape_with_aligned_rows(mask: TensorSpec) -> None:
    q = _pool().tensor(tensor("f32", 2, 4, 20, 8), NORMAL)
    bias = gpu_only._bias(
        {"q": q, "k": q, "mask": _pool().tensor(mask, Values("mask") if mask.dtype == "b8" else NORMAL)}
    )
    assert bias is not None
    assert bias.shape == (2, 4, 20, 20)
    assert bias.dtype == torch.float32
    assert all(step % 16 == 0 for step, size in zip(bias.stride()[:-1], bias.shape[:-1], strict=True) if size > 1)


def test_strides_are_kept() -> None:
    made = _pool().tensor(transposed("f32", 32, 48), NORMAL)
    assert made.shape == (32, 48)
    assert made.stride() == (1, 32)


def test_a_broadcast_tensor_takes_the_memory_of_one_row() -> None:
    assert span_elements(TensorSpec("f32", (1000, 8), (0, 1))) == 8


def test_nothing_random_is_zero_or_not_a_number() -> None:
    made = _pool().tensor(tensor("bf16", 4096), NORMAL)
    assert made.isfinite().all()
    assert (made != 0).float().mean() > 0.99
    positive = _pool().tensor(tensor("f32", 4096), POSITIVE)
    assert positive.min() > 0
    assert positive.max() < 1


def test_following_arguments_lie_in_different_memory() -> None:
    pool = _pool()
    first, second = (pool.tensor(tensor("f32", 1000), NORMAL) for _ in range(2))
    assert abs(first.data_ptr() - second.data_ptr()) >= 4000


def test_an_argument_that_is_written_to_leaves_the_pool_alone() -> None:
    pool = pool_of(torch.device("cpu"))
    spec = tensor("f32", 64)
    runnable(Call("zero_.default", (spec,), (), (spec,)), "cpu", sets=2)()
    pool_values = next(flat for (kind, dtype), flat in pool._flat.items() if (kind, dtype) == ("normal", torch.float32))
    assert (pool_values != 0).float().mean() > 0.99


def test_token_ids_lie_within_the_vocabulary() -> None:
    call = make("embedding.default", tensor("f32", 100, 8), tensor("i64", 4, 7))
    bound = {"weight": call.arguments[0], "indices": call.arguments[1]}
    assert values_of(call, bound, "indices", call.arguments[1]) == Values("below", 100)
    ids = _pool().tensor(tensor("i64", 10_000), Values("below", 100))
    assert ids.min() == 0
    assert ids.max() == 99


def test_the_rows_of_experts_are_split_evenly() -> None:
    ends = _pool().tensor(tensor("i32", 4), Values("offsets", 64))
    assert ends.tolist() == [16, 32, 48, 64]


def test_integers_without_a_rule_are_reported() -> None:
    spec = tensor("i64", 4)
    call = Call("_embedding_bag_dense_backward.default", (tensor("f32", 4, 8), spec, spec, spec, spec), (), ())
    with pytest.raises(NotReplayable, match="integers in argument 'indices'"):
        runnable(call, "cpu", sets=1)


def test_an_unknown_operator_is_reported() -> None:
    with pytest.raises(NotReplayable, match=r"no operator frobnicate\.default"):
        runnable(Call("frobnicate.default", (), (), ()), "cpu", sets=1)


def test_a_result_that_differs_from_the_record_is_reported() -> None:
    x = tensor("f32", 4, 4)
    with pytest.raises(NotReplayable, match=r"gave f32\[4, 4\] where f32\[4,5\] was recorded"):
        runnable(Call("mm.default", (x, x), (), (tensor("f32", 4, 5),)), "cpu", sets=1)


def test_arguments_that_torch_refuses_are_reported_in_one_line() -> None:
    with pytest.raises(NotReplayable) as caught:
        runnable(Call("mm.default", (tensor("f32", 4, 4), tensor("f32", 5, 4)), (), ()), "cpu", sets=1)
    assert "\n" not in str(caught.value)


def test_nothing_needs_a_gradient() -> None:
    run = runnable(make("mm.default", tensor("f32", 4, 4), tensor("f32", 4, 4)), "cpu", sets=1)
    with torch.enable_grad():
        run()
    assert torch.is_grad_enabled() is True


def test_enough_sets_to_walk_out_of_the_l2_and_no_more_than_memory() -> None:
    call = make("neg.default", tensor("f32", 1 << 20))  # 4 MiB
    assert rotation_sets(call, l2_bytes=60 << 20, budget_bytes=1 << 40) == 30
    assert rotation_sets(call, l2_bytes=60 << 20, budget_bytes=12 << 20) == 3
    assert rotation_sets(call, l2_bytes=1 << 20, budget_bytes=1 << 40) == 1


def test_long_lists_of_tensors_rotate_less() -> None:
    call = Call("_foreach_zero_.default", ((tensor("f32", 8),) * 1000,), (), ())
    assert rotation_sets(call, l2_bytes=60 << 20, budget_bytes=1 << 40) == 4


def test_every_counterpart_is_an_operator_that_is_priced() -> None:
    for name in gpu_only.COUNTERPARTS:
        assert calls._operator(f"{name}.default")
        assert name in describe.__globals__["OPERATORS"]


def test_a_sum_that_is_written_where_it_is_read_goes_on_there() -> None:
    total, one, two = tensor("f32", 8, 4), tensor("f32", 8, 2), tensor("f32", 2, 4)
    thunk = replay._thunk(
        Call("addmm.out", (total, one, two), (("out", total),), (total,)), replay.pool_of(torch.device("cpu"))
    )
    first = thunk().clone()
    assert not torch.equal(thunk(), first)
