"""The largest size that fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.reach import affine, largest


@given(limit=st.integers(0, 40), guessed=st.integers(-5, 60))
def test_any_prediction_leads_to_the_largest_size_that_holds(limit: int, guessed: int) -> None:
    sizes = list(range(1, 33))
    found = largest(sizes, lambda size: size <= limit, float, guessed)
    assert found == (None if limit < 1 else min(limit, 32))


@pytest.mark.parametrize(("guessed", "most"), [(16, 2), (8, 4), (1, 7)])
def test_a_good_prediction_costs_two_trials_and_a_bad_one_the_logarithm_of_its_error(guessed: int, most: int) -> None:
    trials: list[int] = []

    def holds(size: int) -> bool:
        trials.append(size)
        return size <= 16

    assert largest([2**power for power in range(12)], holds, float, guessed) == 16
    assert len(trials) <= most


def test_no_size_at_all_has_no_largest() -> None:
    assert largest([], lambda _: True, float, 1) is None


def test_a_line_goes_through_both_points() -> None:
    line = affine((2, 10.0), (4, 16.0))
    assert [line(2), line(4), line(1)] == [10.0, 16.0, 7.0]
