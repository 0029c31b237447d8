"""The two questions rigplan was built for: "$100K or 100 Days" (arXiv 2410.23261) and Lingvanex's GPU benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from planner.answer import Estimate, Run
from planner.report.campaign import fleet_name, fleets, reasons
from planner.spec import Spec

DAY_S = 86_400
STEPS = 143_000


def pythia_1b(root: Path, gpu: str, count: int) -> Estimate:
    """The study's run with fused attention in bf16: both cards share one trace."""
    example = Spec.load(root / "examples" / "pythia-1b.yaml").model_dump(mode="json", exclude_none=True)
    return planner.estimate(
        {
            "model": example["model"] | {"attention": "sdpa"},
            "data": example["data"],
            "training": {"precision": "bf16-mixed", "global_batch": 1024, "micro_batch": 4},
            "hardware": {"gpu": gpu, "count": count},
        }
    )


def of(found: Estimate) -> Run:
    assert found.run is not None
    assert found.run.steps == STEPS
    return found.run


def floor_days(found: Estimate) -> float:
    assert found.step is not None
    return STEPS * found.step.floor_seconds / DAY_S


def test_pythia_1b_takes_longer_than_the_study_reports_for_two_gaming_cards(root: Path) -> None:
    # 1.635e21 FLOP of dense products alone, at the 71 TFLOP/s of a 3090's datasheet: 133 days; the study reports 108
    two = pythia_1b(root, "rtx-3090", 2)
    assert floor_days(two) > 133
    assert of(two).low_days > 133
    # 1.877e21 FLOP at 312 TFLOP/s, attention counted in full: 17.4 days; the study reports 17.57, 99 % of the peak
    four = pythia_1b(root, "a100-sxm4-80gb", 4)
    assert of(four).low_days > 17.4
    assert floor_days(four) > 15.2  # the dense products alone


@pytest.mark.slow
def test_sixty_six_gaming_cards_finish_sooner_and_cheaper_than_eight_a100(root: Path) -> None:
    found = planner.plan(root / "examples" / "lingvanex.yaml")
    best = {fleet_name(item): plan for item, plan in fleets(found.ranked)}
    gaming, a100, h100 = (best[name] for name in ("66 x rtx-3090", "8 x a100-sxm4-80gb", "4 x h100-sxm5-80gb"))
    assert gaming.high_days < a100.low_days
    assert gaming.cost_usd is not None
    assert a100.cost_usd is not None
    assert gaming.cost_usd < a100.cost_usd
    # twice the price buys about twice the speed: which of the two is better is not certain
    assert h100.low_days < a100.high_days
    assert any("so the order is not certain" in line for line in reasons(found.ranked))


@pytest.mark.slow
def test_four_h100_beat_eight_a100_in_price_and_days(root: Path) -> None:
    found = planner.plan(root / "examples" / "pythia-1b.yaml")
    days: dict[tuple[str, int], float] = {}
    for item in found.ranked:
        key = (item.hardware.gpu, item.hardware.count)
        days[key] = min(days.get(key, float("inf")), of(item).days)
    assert days["h100-sxm5-80gb", 4] < days["a100-sxm4-80gb", 8]
    assert days["rtx-3090", 8] < 100 < days["rtx-3090", 2]


def test_a_translation_model_trains_as_much_faster_on_other_cards_as_was_measured() -> None:
    # Lingvanex, 200 million parameters: an H100 1.7 to 2.1 times an A100, an RTX 3090 0.30 to 0.45 times
    seconds = {}
    for gpu in ("a100-sxm4-80gb", "h100-sxm5-80gb", "rtx-3090"):
        found = planner.estimate(
            {
                "model": {"name": "marian-big"},
                "data": {"sequence_length": 64, "target_length": 64},
                "training": {"precision": "fp16-mixed", "micro_batch": 128},
                "hardware": {"gpu": gpu},
            }
        )
        assert found.step is not None
        seconds[gpu] = found.step.seconds
    assert 1.7 <= seconds["a100-sxm4-80gb"] / seconds["h100-sxm5-80gb"] <= 2.1
    assert 0.30 <= seconds["a100-sxm4-80gb"] / seconds["rtx-3090"] <= 0.45
