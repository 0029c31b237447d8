"""Library buffers as allocator histories of an H200 show them (sizes in MiB there)."""

from __future__ import annotations

import pytest

from planner import scratch
from planner.call import Call, TensorSpec
from planner.memory import RESULT
from planner.scratch import MIB, Device

H200 = Device((9, 0), 132)


def _convolution(
    dtype: str, source: tuple[int, ...], weight: tuple[int, ...], result: tuple[int, ...], stride: int, pad: int
) -> Call:
    tensors = [TensorSpec(dtype, shape) for shape in (source, weight)]
    settings = ((stride, stride), (pad, pad), (1, 1), False, (0, 0), 1)
    return Call("convolution.default", (*tensors, None, *settings), (), (TensorSpec(dtype, result),))


@pytest.mark.parametrize(
    ("call", "mebibytes"),
    [
        # SegFormer, U-Net and ResNet-50 on an H200: channels last copies of input, output and weights.
        (_convolution("bf16", (8, 3, 512, 512), (64, 3, 7, 7), (8, 64, 128, 128), 4, 3), 48.048),
        (_convolution("bf16", (8, 64, 128, 128), (128, 64, 3, 3), (8, 128, 64, 64), 2, 1), 24.141),
        (_convolution("f32", (32, 128, 64, 64), (128, 128, 3, 3), (32, 128, 64, 64), 1, 1), 128.563),
        (_convolution("bf16", (64, 256, 56, 56), (512, 256, 1, 1), (64, 512, 28, 28), 2, 0), 147.0),
        (_convolution("bf16", (64, 512, 7, 7), (2048, 512, 1, 1), (64, 2048, 7, 7), 1, 0), 15.313),
    ],
)
def test_cudnn_copies_what_a_convolution_reads_and_writes(call: Call, mebibytes: float) -> None:
    ((size,),) = scratch.during(call, H200)
    assert size / MIB == pytest.approx(mebibytes, abs=1e-3)


@pytest.mark.parametrize(
    ("dtype", "source", "weight", "pad", "mebibytes", "within"),
    [
        # ResNet-50's third stage on an H200: rows of 14 x 14 values are not aligned to 16 bytes.
        ("bf16", (64, 256, 14, 14), (1024, 256, 1, 1), 0, (32.625,), 1e-3),
        # A U-Net's backward pass peaks in this call, 10.27 MiB above the copies: 18 slices of 0.5625 MiB, here 14.
        ("f32", (32, 128, 64, 64), (128, 128, 3, 3), 1, (128.563, 138.83), 2.4),
    ],
)
def test_the_gradient_of_a_filter_is_summed_in_fp32(
    dtype: str, source: tuple[int, ...], weight: tuple[int, ...], pad: int, mebibytes: tuple[float, ...], within: float
) -> None:
    forward = _convolution(dtype, source, weight, (source[0], weight[0], *source[2:]), 1, pad)
    image, filters, _, *settings = forward.arguments
    asked = (forward.results[0], image, filters, None, *settings, (True, True, False))
    found = scratch.during(Call("convolution_backward.default", asked, (), (image, filters)), H200)
    assert [sum(group) / MIB for group in found] == pytest.approx(mebibytes, abs=within)


@pytest.mark.parametrize(
    ("shape", "weight", "pad", "gradient_bytes"),
    [
        # A ResNet-34 of 512 samples and a U-Net of 40 on an H200, bf16.
        ((512, 64, 56, 56), (64, 64, 3, 3), 1, 413_033_127),
        ((512, 128, 28, 28), (128, 128, 3, 3), 1, 213_484_199),
        ((40, 128, 64, 64), (128, 128, 3, 3), 1, 91_849_383),
    ],
)
def test_16_bit_gradients_of_filters_are_summed_in_slices_that_fill_the_device(
    shape: tuple[int, ...], weight: tuple[int, ...], pad: int, gradient_bytes: int
) -> None:
    forward = _convolution("bf16", shape, weight, (shape[0], weight[0], *shape[2:]), 1, pad)
    image, filters, _, *settings = forward.arguments
    asked = (forward.results[0], image, filters, None, *settings, (False, True, False))
    ((size,),) = scratch.during(Call("convolution_backward.default", asked, (), (image, filters)), H200)
    assert size == pytest.approx(gradient_bytes, abs=1024)


def test_a_gradient_of_many_tiles_is_not_cut() -> None:
    # wav2vec 2.0 on an H200: 394,756,243 bytes, as much as the forward takes.
    forward = _convolution("bf16", (16, 512, 15999, 1), (512, 512, 3, 1), (16, 512, 7999, 1), 2, 0)
    image, filters, _, *settings = forward.arguments
    asked = (forward.results[0], image, filters, None, *settings, (False, True, False))
    ((size,),) = scratch.during(Call("convolution_backward.default", asked, (), (image, filters)), H200)
    assert size == pytest.approx(394_756_243, abs=1024)


def test_a_small_filter_over_few_channels_reads_the_image_as_it_is() -> None:
    # The first convolution of a U-Net on an H200, in bf16 and in TF32.
    for dtype in ("bf16", "f32"):
        assert scratch.during(_convolution(dtype, (40, 3, 64, 64), (128, 3, 3, 3), (40, 128, 64, 64), 1, 1), H200) == ()


@pytest.mark.parametrize(("samples", "mebibytes"), [(128, 1088.302), (192, 1568.954)])
def test_an_rnn_in_16_bit_takes_its_workspace_twice_in_the_backward(samples: int, mebibytes: float) -> None:
    # Three layers of 1,500 over 512 steps on an H200: 1,141,167,104 and 1,645,167,616 bytes.
    x, state = TensorSpec("bf16", (samples, 512, 1500)), TensorSpec("bf16", (3, samples, 1500))
    matrix, vector = TensorSpec("bf16", (6000, 1500)), TensorSpec("bf16", (6000,))
    weights = (matrix, matrix, vector, vector) * 3
    settings = (3, 0.2, False, True)
    forward = Call(
        "rigplan.rnn_forward.default", ("lstm", x, (state, state), weights, *settings), (), (x, state, state)
    )
    ((copied, *results, workspace, last),) = scratch.during(forward, H200)
    assert (copied, workspace / MIB) == (samples * 512 * 1500 * 2, pytest.approx(mebibytes, abs=2e-3))
    assert (results, last) == ([RESULT, RESULT], RESULT)  # the workspace is there before what the backward needs
    given = (x, "lstm", x, (state, state), weights, x, x, *settings)
    groups = scratch.during(Call("rigplan.rnn_backward.default", given, (), (x, state)), H200)
    assert [group[-1] for group in groups] == [workspace, workspace]


@pytest.mark.parametrize(("tokens", "sums_bytes"), [(98_304, 258_648_000), (65_536, 238_986_000)])
def test_the_gradient_of_an_embedding_is_summed_by_tens_first(tokens: int, sums_bytes: int) -> None:
    # 33,278 words of 1,500 values: two LSTMs on an H200.
    grad, places = TensorSpec("bf16", (tokens, 1500)), TensorSpec("i64", (tokens,))
    words = TensorSpec("bf16", (33278, 1500))
    call = Call("embedding_dense_backward.default", (grad, places, 33278, -1, False), (), (words,))
    ((*_, sums),) = scratch.during(call, H200)
    assert sums == sums_bytes


def test_a_sum_over_more_than_2_gib_goes_piece_by_piece() -> None:
    # The bias of an LSTM's head on an H200: four times 68,153,344 bytes.
    call = Call("sum.dim_IntList", (TensorSpec("bf16", (65536, 33278)), (0,)), (), (TensorSpec("bf16", (1, 33278)),))
    assert scratch.during(call, H200) == ((68_153_344,),) * 4


def test_an_aligned_convolution_by_one_and_full_fp32_need_no_copies() -> None:
    pointwise = _convolution("bf16", (64, 256, 56, 56), (64, 256, 1, 1), (64, 64, 56, 56), 1, 0)
    assert scratch.during(pointwise, H200) == ()
    full = _convolution("f32", (32, 128, 64, 64), (128, 128, 3, 3), (32, 128, 64, 64), 1, 1)
    assert scratch.during(full, Device((9, 0), 132, tf32=False)) == ()


def test_attention_sums_query_gradients_in_fp32() -> None:
    # modernbert-base on an H200: 16 samples, 12 heads, 1024 rows of 64: 48 MiB and a row sum of 0.75.
    q = TensorSpec("bf16", (16, 12, 1024, 64))
    lse = TensorSpec("f32", (16, 12, 1024))
    call = Call(
        "rigplan.attention_backward.default", (q, q, q, q, q, lse, None, 0.0, False, "cudnn", False), (), (q, q, q)
    )
    ((size,),) = scratch.during(call, H200)
    assert size / MIB == 48.75


def test_hopper_holds_a_larger_cublas_workspace_in_each_of_two_threads() -> None:
    sizes = {block.size_bytes for block in scratch.held(H200) if block.backward}
    assert sizes == {32 * MIB}
    older = {block.size_bytes for block in scratch.held(Device((8, 0), 108)) if block.backward}
    assert older == {8 * MIB + 128 * 1024}


def test_most_calls_need_nothing() -> None:
    tensor = TensorSpec("bf16", (4, 4))
    assert scratch.during(Call("mul.Tensor", (tensor, tensor), (), (tensor,)), H200) == ()
