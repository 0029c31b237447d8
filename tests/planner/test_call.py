"""Calls: their text, their JSON, and integers read off between two of them."""

from __future__ import annotations

import json

import pytest

from planner.call import Call, TensorSpec, from_json, to_json


def linear(rows: int) -> Call:
    return Call(
        "addmm.default",
        (TensorSpec("bf16", (8,)), TensorSpec("bf16", (rows, 4)), TensorSpec("bf16", (4, 8), (1, 4))),
        (("beta", 1),),
        (TensorSpec("bf16", (rows, 8)),),
    )


def test_the_text_shows_shapes_and_strides() -> None:
    assert str(linear(2)) == "addmm.default(bf16[8], bf16[2,4], bf16[4,8]{1,4}, beta=1) -> bf16[2,8]"


def test_json_gives_the_same_call_back() -> None:
    assert from_json(json.loads(json.dumps(to_json(linear(3))))) == linear(3)


def test_a_broadcast_dimension_is_read_once() -> None:
    assert TensorSpec("f32", (1000, 8), (0, 1)).touched_bytes == 32
    assert TensorSpec("f32", (1000, 8)).touched_bytes == 32_000


def test_integers_are_combined_place_by_place() -> None:
    assert linear(2).map_integers(linear(4), lambda low, high: low + 3 * (high - low)) == linear(8)


def test_calls_of_other_operators_do_not_combine() -> None:
    other = Call("mm.default", (), (), ())
    with pytest.raises(ValueError, match=r"mm\.default"):
        linear(2).map_integers(other, min)
