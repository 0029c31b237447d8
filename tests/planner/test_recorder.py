"""The recorder writes down calls and lives of blocks as CUDA would show them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.recorder import Recorder
from planner.workload import ALLOCATE, FREE, Events


def _recorded(work: Callable[[], object]) -> tuple[Recorder, Events]:
    with FakeTensorMode(allow_non_fake_inputs=True), Recorder() as recorder:
        recorder.start("activations")
        result = work()
        events = recorder.segment()
        del result
    return recorder, events


def _names(recorder: Recorder) -> list[str]:
    return [call.name for call in recorder.calls]


def test_a_block_lives_from_its_birth_to_its_last_reference() -> None:
    recorder, events = _recorded(lambda: (torch.empty(256) + 1).sum())
    assert recorder.block_bytes[:2] == [1024, 1024]
    assert events.codes.tolist().count(ALLOCATE) == 3
    assert events.codes.tolist().count(FREE) == 2


def test_views_are_no_calls_and_share_their_block() -> None:
    recorder, _ = _recorded(lambda: torch.empty(4, 8).t().reshape(2, 16)[0].relu())
    assert _names(recorder) == ["clone.default", "relu.default"]


def test_a_question_about_an_integer_mask_has_an_answer() -> None:
    _, _ = _recorded(
        lambda: torch.empty(3) if torch.ones(4, dtype=torch.long).eq(1).all() else pytest.fail("no answer")
    )


def test_a_mask_of_known_places_may_index_a_fake_tensor() -> None:
    mask = torch.tensor([True, False, True])
    recorder, _ = _recorded(lambda: torch.empty(3, 8)[mask])
    assert recorder.block_bytes[-1] == 2 * 8 * 4


def test_experts_multiply_in_fp32_as_on_a_gpu() -> None:
    def experts() -> torch.Tensor:
        rows, weights = torch.empty(64, 32), torch.empty(4, 32, 48)
        return torch._grouped_mm(rows, weights, offs=torch.tensor([16, 32, 48, 64], dtype=torch.int32))

    recorder, _ = _recorded(experts)
    assert recorder.block_bytes[-1] == 64 * 48 * 4
    assert "_grouped_mm.default" in _names(recorder)


def test_dropout_makes_its_mask_before_its_output() -> None:
    recorder, _ = _recorded(lambda: torch.ops.aten.native_dropout(torch.empty(100), 0.5, True))
    assert recorder.block_bytes == [400, 100, 400]


def test_a_second_gradient_is_added_into_the_first() -> None:
    def twice() -> None:
        x = torch.empty(1000, requires_grad=True)
        y = x * 2
        torch.autograd.backward((y.relu() + y.sigmoid()).sum())

    recorder, events = _recorded(twice)
    sums = [call for call in recorder.calls if call.name == "add.Tensor"]
    born = events.codes.tolist().count(ALLOCATE)
    assert len(sums) == 1  # forward and backward sums are one kind of call
    assert born == len({int(v) for c, v in zip(events.codes, events.values, strict=True) if c == ALLOCATE})


def test_ctc_keeps_a_row_as_long_as_the_longest_target_of_a_sample() -> None:
    """(2 x target + 1) log probabilities a frame and sample, also when all targets come in one row."""
    frames, lengths = torch.tensor([50, 50]), torch.tensor([5, 7])

    def loss() -> torch.Tensor:
        log_probs = torch.empty(50, 2, 20)
        return torch.nn.functional.ctc_loss(log_probs, torch.empty(12, dtype=torch.long), frames, lengths)

    recorder, _ = _recorded(loss)
    assert 4 * 2 * 50 * (2 * 7 + 1) in recorder.block_bytes
