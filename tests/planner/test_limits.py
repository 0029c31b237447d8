"""The search for the furthest size that fits: how few trials it takes, and what it says where a model ends."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from catalog.errors import RigplanError
from planner import limits
from planner.answer import Estimate

LIMIT_BYTES, MOST = 24e9, 1 << 22


def _searched(
    need: Callable[[int], float], start: int, grain: int, longest: int = MOST
) -> tuple[limits.Limit, list[int]]:
    """The limit of a model that needs so many bytes, and the sizes that were tried."""
    tried: list[int] = []

    def asked(size: int) -> Estimate:
        tried.append(size)
        if size > longest:
            raise RigplanError(f"the model has {longest} positions")
        memory: Any = SimpleNamespace(high_bytes=need(size), device_bytes=need(size), usable_bytes=LIMIT_BYTES)
        return Estimate.model_construct(verdict="fits" if need(size) <= LIMIT_BYTES else "does-not-fit", memory=memory)

    return limits._bisect("size", asked, grain, start, start, MOST), tried


@pytest.mark.parametrize(("bytes_a_token", "start"), [(1e5, 512), (4e5, 1024), (6e5, 1 << 14), (2e6, 64), (3e8, 64)])
def test_a_length_is_found_to_one_part_in_128_with_few_trials(bytes_a_token: float, start: int) -> None:
    """4 GB of states, and so many bytes a token with a bump as the allocator's segments make them."""
    limit, tried = _searched(lambda size: 4e9 + bytes_a_token * size + 1e7 * (size // 64 % 7), start, 64)
    truth = 20e9 / bytes_a_token
    assert limit.value is not None
    assert limit.too_large is not None
    assert limit.too_large - limit.value <= max(64, truth / 128)
    assert limit.value <= truth <= limit.too_large + 64 + 7e7 / bytes_a_token
    assert len(tried) <= 8


def test_a_micro_batch_is_found_exactly() -> None:
    limit, tried = _searched(lambda size: 2e9 + 3e8 * size, 1, 1)
    assert (limit.value, limit.too_large) == (73, 74)
    assert len(tried) <= 5


def test_where_the_model_ends_its_reason_is_told() -> None:
    limit, _ = _searched(lambda size: 2e9 + 1e5 * size, 512, 64, longest=1000)
    assert (limit.value, limit.too_large, limit.reason) == (960, 1024, "the model has 1000 positions")


def test_only_a_refused_length_is_followed_by_others() -> None:
    asked: list[int] = []

    def tried(size: int) -> Estimate:
        asked.append(size)
        raise RigplanError("data.sequence_length is too long" if len(asked) < 3 else "the model cannot be traced")

    with pytest.raises(RigplanError, match=r"^the model cannot be traced"):
        limits._first_length(tried, 1000)
    assert asked == [1000, 960, 480]


def test_where_nothing_fits_the_least_is_tried_second_and_last() -> None:
    limit, tried = _searched(lambda size: 30e9, 2048, 64)
    assert limit.value is None
    assert tried == [2048, 64]
