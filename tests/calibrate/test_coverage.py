"""Ranges: as wide as runs that were left out of them need, and no wider."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from calibrate.coverage import RANGES, Prediction, covered, ranges, read

PREDICTIONS = Path(__file__).parents[1] / "measured" / "predictions.jsonl"


def runs(spread: float, groups: int = 20, each: int = 5, known: str = "transferred") -> list[Prediction]:
    random = np.random.default_rng(7)
    return [
        Prediction(
            name=f"{group} {number}", source="made up", gpu=f"gpu {group}", family="bert", precision="bf16",
            compiled=False, known=known, host_bound_share=0.0, predicted_seconds=1.0,
            measured_seconds=float(np.exp(random.normal(0.0, spread))), group=f"gpu {group}",
        )
        for group in range(groups) for number in range(each)
    ]  # fmt: skip


def test_a_range_holds_nine_of_ten_runs_of_groups_left_out() -> None:
    row = ranges(runs(0.1))["transferred"]["device"]
    assert 0.87 <= row["coverage"] <= 0.93  # a hundred runs tell a share of 0.90 within 0.03
    # 1.645 standard deviations of a normal distribution hold 90 %
    assert np.log(row["high"]) == pytest.approx(0.1645, abs=0.05)
    assert np.log(row["low"]) == pytest.approx(-0.1645, abs=0.05)


def test_larger_residuals_make_a_wider_range() -> None:
    narrow, wide = (ranges(runs(spread))["transferred"]["device"] for spread in (0.05, 0.2))
    assert wide["low"] < narrow["low"] < 1 < narrow["high"] < wide["high"]


def test_a_group_apart_widens_the_range_that_is_told() -> None:
    odd = [item for item in runs(0.05, groups=4) if item.group != "gpu 0"]
    odd += [Prediction(**{**as_plain(item), "measured_seconds": 1.4, "group": "gpu 0"}) for item in odd[:5]]
    row = ranges(odd)["transferred"]["device"]
    assert row["high"] > 1.1
    assert row["coverage"] < 0.9  # the group left out was seen by no other: said, not hidden


def test_a_class_of_few_runs_takes_the_range_of_all_and_holds_its_own_runs_too() -> None:
    many = runs(0.05)
    few = [Prediction(**{**as_plain(item), "measured_seconds": 1.4, "host_bound_share": 0.7}) for item in many[:4]]
    table = ranges([*many, *few])["transferred"]
    assert table["device"]["high"] < 1.2
    assert table["host"]["runs"] == 4
    assert table["host"]["low"] <= table["device"]["low"]
    assert table["host"]["high"] == pytest.approx(1.4)


def as_plain(item: Prediction) -> dict[str, object]:
    return {name: getattr(item, name) for name in Prediction.__slots__}


def test_the_shipped_ranges_hold_nine_of_ten_of_the_kept_predictions() -> None:
    table = yaml.safe_load(RANGES.read_text(encoding="utf-8"))
    kept = read(PREDICTIONS)
    for known in ("measured", "transferred"):
        some = [item for item in kept if item.known == known and (known != "measured" or not item.rules)]
        assert len(some) >= 40
        assert 0.85 <= covered(some, table) <= 0.97
    for rows in table.values():
        assert all(row["low"] <= 1.0 <= row["high"] for row in rows.values())
