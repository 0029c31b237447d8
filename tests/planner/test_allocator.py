"""torch's caching allocator replayed: rounding, segments, splits (c10/cuda/CUDACachingAllocator)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.allocator import MIB, Allocator, OutOfMemory


@pytest.mark.parametrize(
    ("requested", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),  # small pool
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),  # middle sizes share 20 MiB
        (10 * MIB, 10 * MIB, 10 * MIB),  # a segment of its own
        (11 * MIB - 1, 11 * MIB, 12 * MIB),  # rounded to 2 MiB; a rest of 1 MiB is not split off
    ],
)
def test_a_request_takes_the_segment_that_torch_takes(requested: int, allocated: int, reserved: int) -> None:
    allocator = Allocator()
    allocator.allocate(requested)
    assert allocator.reserved == reserved
    assert allocator.allocated == (reserved if reserved - allocated == MIB and requested > 10 * MIB else allocated)


def test_a_freed_block_serves_the_next_request_that_fits() -> None:
    allocator = Allocator()
    allocator.free(allocator.allocate(64 * MIB))
    allocator.allocate(40 * MIB)
    allocator.allocate(24 * MIB)
    assert allocator.reserved == 64 * MIB
    assert allocator.peak_allocated == 64 * MIB


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = Allocator()
    large, small = allocator.allocate(100 * MIB), allocator.allocate(50 * MIB)
    allocator.free(large)
    allocator.free(small)
    allocator.allocate(50 * MIB)
    allocator.allocate(100 * MIB)
    assert allocator.reserved == 150 * MIB


def test_under_a_limit_the_cache_is_emptied_before_memory_runs_out() -> None:
    allocator = Allocator(limit_bytes=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    assert allocator.reserved == 80 * MIB
    with pytest.raises(OutOfMemory):
        allocator.allocate(40 * MIB)


def test_expandable_segments_do_not_fragment() -> None:
    fixed, expandable = Allocator(), Allocator(expandable=True)
    for allocator in (fixed, expandable):
        allocator.free(allocator.allocate(40 * MIB))
        allocator.allocate(60 * MIB)
    assert fixed.reserved == 100 * MIB
    assert expandable.reserved == 60 * MIB


@given(st.lists(st.tuples(st.integers(1, 64 * MIB), st.booleans()), max_size=60), st.booleans())
def test_whatever_happens_no_byte_is_lost(requests: list[tuple[int, bool]], expandable: bool) -> None:
    allocator = Allocator(expandable=expandable)
    live = []
    for size, keep in requests:
        block = allocator.allocate(size)
        live.append(block) if keep else allocator.free(block)
        assert 0 <= allocator.allocated <= allocator.reserved
    for block in live:
        allocator.free(block)
    assert allocator.allocated == 0


def test_what_one_stream_has_freed_serves_no_other() -> None:
    allocator = Allocator()
    allocator.free(allocator.allocate(64 * MIB, stream=1))
    allocator.allocate(64 * MIB)
    assert allocator.reserved == 128 * MIB
    allocator.allocate(32 * MIB, stream=1)
    assert allocator.reserved == 128 * MIB
