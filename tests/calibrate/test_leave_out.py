"""A model that is left out leaves nothing of its own in the profile it is priced with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calibrate.fit import fit
from calibrate.leave_out import summary, without
from planner.call import Call, TensorSpec, to_json
from planner.cost import point_key


@dataclass(frozen=True)
class OneModel:
    """As much of a workload as leaving out needs."""

    calls: tuple[Call, ...]


def stream(elements: int) -> Call:
    x = TensorSpec("bf16", (elements,))
    return Call("mul.Tensor", (x, x), (), (x,))


def test_its_points_and_the_samples_equal_to_its_calls_are_gone_and_the_others_stay() -> None:
    lines: list[dict[str, Any]] = [{"header": {"accelerator": "h200-sxm"}}]
    lines += [{"call": to_json(stream(2**power)), "seconds": 2.0**power * 1e-9} for power in range(10, 20)]
    profile = fit(lines)
    left = without(profile, OneModel((stream(2**12), stream(2**15))), tf32=False)  # type: ignore[arg-type]
    kept = [2.0**power for power in range(10, 20) if power not in (12, 15)]
    assert sorted(left.curves["pointwise/any"][0].shape[:, 0]) == kept
    assert sorted(left.points) == sorted(point_key(stream(int(count)), False) for count in kept)
    assert len(profile.points) == len(profile.curves["pointwise/any"][0]) == 10


def test_a_curve_of_which_nothing_is_left_is_dropped() -> None:
    profile = fit([{"header": {"accelerator": "h200-sxm"}}, {"call": to_json(stream(64)), "seconds": 2e-6}])
    assert without(profile, OneModel((stream(64),)), tf32=False).curves == {}  # type: ignore[arg-type]


def test_the_summary_speaks_of_absolute_errors() -> None:
    assert summary("runs", [-0.02, 0.04]).split()[-6:] == ["mean", "3.0%", "p90", "3.8%", "worst", "4.0%"]
