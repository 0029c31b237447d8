"""Where segments lie, held against addresses of real steps on an H200 (torch 2.11, driver 580)."""

from __future__ import annotations

import itertools

from planner.address_space import FIRST_GAP, MIB, REGION, AddressSpace
from planner.allocator import Allocator


def test_what_does_not_fit_in_a_gap_goes_below_all_others() -> None:
    # ResNet-18 in TF32: segments of 394 MiB at -4350, -4766, -5182 and -5598 MiB, 200 MiB at -5822 and -6046.
    space = AddressSpace()
    space.take(FIRST_GAP)
    places = [space.take(size * MIB) // MIB for size in (394, 394, 394, 200, 200)]
    assert [before - after for before, after in itertools.pairwise(places)] == [416, 416, 224, 224]


def test_the_lowest_gap_that_holds_a_segment_takes_it() -> None:
    # U-Net: 24 MiB right behind a segment of 130 MiB (-3838 MiB), in what its region of 160 MiB left.
    space = AddressSpace()
    space.take(FIRST_GAP)
    wide = space.take(258 * MIB)
    lower = space.take(130 * MIB)
    assert space.take(24 * MIB) == lower + 130 * MIB
    assert space.take(16 * MIB) == wide + 258 * MIB


def test_what_was_given_back_is_one_gap_again() -> None:
    space = AddressSpace()
    space.take(FIRST_GAP)
    first, second = space.take(20 * MIB), space.take(12 * MIB)
    assert second == first + 20 * MIB
    space.give_back(first, 20 * MIB)
    space.give_back(second, 12 * MIB)
    assert space.take(REGION) == first


def test_of_equal_free_blocks_the_newest_segment_is_cut() -> None:
    allocator = Allocator()
    allocator.allocate(FIRST_GAP)
    old, new = allocator.allocate(64 * MIB), allocator.allocate(64 * MIB)
    assert old is not None
    assert new is not None
    place = new.address
    allocator.free(old)
    allocator.free(new)
    again = allocator.allocate(64 * MIB)
    assert again is not None
    assert again.address == place
