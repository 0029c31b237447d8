"""Kernels: what a calibration times covers what planner prices."""

import pytest

from calibrate import kernels
from calibrate.kernels_dense import VOCABULARIES
from planner.call import Call, from_json, to_json
from planner.operators import KINDS, describe


@pytest.fixture
def calls(kernel_calls: dict[str, list[Call]]) -> dict[str, list[Call]]:
    return kernel_calls


def test_every_priced_kind_has_kernels_and_no_other() -> None:
    assert set(kernels.KERNELS) == set(KINDS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_kernels_of_a_kind_are_priced_as_that_kind(kind: str, calls: dict[str, list[Call]]) -> None:
    assert len(calls[kind]) >= 10
    kinds = [describe(call).kind for call in calls[kind]]
    assert kinds.count(kind) >= 0.9 * len(kinds)


def test_a_calibration_has_enough_of_the_expensive_kinds(calls: dict[str, list[Call]]) -> None:
    assert len(calls["matmul"]) >= 800
    assert len(calls["convolution"]) >= 400
    assert len(calls["attention"]) >= 400
    assert len(calls["pointwise"]) >= 400


def test_matrix_products_come_in_the_three_layouts_of_training(calls: dict[str, list[Call]]) -> None:
    layouts = {describe(call).shape[4:6] for call in calls["matmul"] if call.name == "mm.default"}
    assert layouts == {(0, 1), (0, 0), (1, 0)}  # x W^T, the data gradient, the weight gradient


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_the_expensive_kinds_come_in_every_precision(dtype: str, calls: dict[str, list[Call]]) -> None:
    for kind in ("matmul", "convolution", "attention", "rnn", "batch_norm", "layer_norm"):
        assert any(describe(call).dtype == dtype for call in calls[kind]), kind


def test_odd_vocabularies_are_timed(calls: dict[str, list[Call]]) -> None:
    assert {50257, 50265, 128100} <= set(VOCABULARIES)
    widths = {call.results[0].shape[-1] for call in calls["matmul"] if call.results[0].dtype == "bf16"}
    assert {50257, 50265, 128100} <= widths


def test_convolutions_cover_dimensions_groups_and_transposes(calls: dict[str, list[Call]]) -> None:
    shapes = [describe(call).shape for call in calls["convolution"]]
    assert {shape[8] for shape in shapes} == {1, 2, 3}
    assert {shape[9] for shape in shapes} == {0, 1}
    assert any(shape[7] == shape[1] > 1 for shape in shapes)  # depthwise
    assert {shape[10:12] for shape in shapes} >= {(0, 0), (1, 1), (0, 1)}  # forward, both gradients, the first layer's


def test_attention_covers_kernels_head_sizes_groups_and_masks(calls: dict[str, list[Call]]) -> None:
    described = [describe(call) for call in calls["attention"]]
    assert {item.variant for item in described} == {"cudnn", "flash", "efficient"}
    assert {item.shape[5] for item in described} >= {64, 80, 96, 128, 256}
    assert {item.shape[3] for item in described} >= {128, 2049, 8192}
    for place in (6, 7, 8, 9):  # causal, backward, mask, dropout
        assert {item.shape[place] for item in described} == {0, 1}
    assert any(item.shape[1] != item.shape[2] for item in described)


def test_no_tensor_is_larger_than_six_gib(calls: dict[str, list[Call]]) -> None:
    largest = max(spec.touched_bytes for group in calls.values() for call in group for spec in call.tensors)
    assert 1 << 30 <= largest <= 6 << 30


def test_a_call_survives_its_file(calls: dict[str, list[Call]]) -> None:
    for group in calls.values():
        call = group[len(group) // 2]
        assert from_json(to_json(call)) == call
