"""Naive, free lunch and best side by side, over the combinations of the paper that asked for them first."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from catalog.store import find
from planner.answer import HardwareUsed, Plan, Stages
from planner.report.plan import page
from planner.spec import Spec
from planner.stages import free_lunch, naive, seconds_a_sample, staged
from planner.strategy import Strategy, choices, impossible, same_without_sharding
from tests.planner.answers import estimate
from tests.planner.test_search import spec

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "stages.txt"


@pytest.mark.parametrize(("count", "combinations"), [(1, 12), (2, 22)])
def test_the_papers_grid_has_22_combinations_and_12_on_one_gpu(count: int, combinations: int) -> None:
    asked = Spec.load(ROOT / "examples" / "combinations.yaml")
    possible = [
        strategy
        for strategy, choice in choices(asked)
        if choice.count == count
        and not impossible(strategy, choice, find(choice.gpu))
        and same_without_sharding(strategy, choice) is None
    ]
    assert len(possible) == combinations  # arXiv 2410.23261: 2 x 6 x 2 less offload without sharding


def test_most_is_what_each_sharding_can_offload() -> None:
    asked = Spec.load(ROOT / "examples" / "combinations.yaml")
    most = {strategy.sharding: strategy.offload for strategy, _ in choices(asked) if strategy.offload != "none"}
    ways = {"zero1": "optimizer", "zero2": "optimizer", "zero3": "all", "fsdp": "all", "fsdp-grad-op": "all"}
    assert {key: value for key, value in most.items() if key != "none"} == ways


def test_naive_takes_all_away_and_the_free_lunch_gives_back_what_costs_nothing() -> None:
    asked = Strategy(precision="tf32", checkpointing="full", sharding="fsdp", offload="all", micro_batch=4)
    plain, lunch = naive(asked), free_lunch(asked)
    assert (plain.precision, plain.attention, plain.sharding, plain.micro_batch) == ("fp32", "eager", "none", None)
    assert (lunch.precision, lunch.attention, lunch.optimizer_implementation) == ("tf32", "sdpa", "fused")
    assert lunch.compile
    assert lunch.checkpointing == plain.checkpointing == "none"
    assert naive(Strategy(precision="fp16-mixed")).precision == "fp16-mixed"


def test_the_table_puts_the_stages_of_each_machine_side_by_side() -> None:
    four, one = (HardwareUsed(gpu="a100-sxm4-80gb", count=count) for count in (4, 1))
    best = estimate("a100-sxm4-80gb", 4, 17.6, sharding="zero1", micro_batch=16)
    found = Plan(
        ranked=[best],
        stages=[
            Stages(
                hardware=four,
                naive=estimate("a100-sxm4-80gb", 4, 41.0, attention="eager"),
                free_lunch=estimate("a100-sxm4-80gb", 4, 20.1),
                best=best,
                tried=24,
                fitting=22,
            ),
            Stages(
                hardware=one,
                free_lunch=estimate("a100-sxm4-80gb", 1, 80.0),
                tried=12,
                fitting=0,
                reasons={"naive": "does not fit", "best": "no combination of the plan fits"},
            ),
        ],
    )
    text = page(found)
    assert text[text.index("Stages, in days") :].split("\n\nAssumed")[0] + "\n" == GOLDEN.read_text(encoding="utf-8")


def test_stages_of_several_models_say_whose_they_are_and_how_each_time_is_known() -> None:
    card = HardwareUsed(gpu="rtx-3090", count=1)
    lunch, best = estimate("rtx-3090", 1, 20.0), estimate("rtx-3090", 1, 18.0)
    assert lunch.step is not None
    lunch = lunch.model_copy(update={"step": lunch.step.model_copy(update={"known": "transferred"})})
    rows = [
        Stages(model="pythia-160m", hardware=card, free_lunch=lunch, best=best, tried=4, fitting=2),
        Stages(model="pythia-1b", hardware=card, tried=4, fitting=0, reasons={"naive": "does not fit"}),
    ]
    text = page(Plan(ranked=[best], stages=rows))
    table = text[text.index("Stages, in days") :].splitlines()
    assert table[1].split()[0] == "model"
    assert table[3].split()[:4] == ["pythia-160m", "1", "x", "rtx-3090"]
    assert table[3].endswith("-, transferred, prior")
    assert any("naive of pythia-1b on 1 x rtx-3090: does not fit" in line for line in table)


def test_stages_are_compared_by_seconds_a_sample() -> None:
    assert seconds_a_sample(estimate(days=143_000 * 1024 / 86_400)) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="without step time"):
        seconds_a_sample(estimate().model_copy(update={"step": None}))


@pytest.mark.slow
def test_a_small_model_is_staged_on_one_gpu_and_two() -> None:
    grid = {
        "checkpointing": ["none", "full"],
        "sharding": ["none", "zero1", "zero2", "zero3", "fsdp-grad-op", "fsdp"],
        "offload": ["none", "most"],
    }
    asked = Spec.load(spec(grid, {"gpu": "rtx-3090", "count": [1, 2]}))
    found = planner.plan(asked)
    one, two = staged(asked, found)
    assert (one.fitting, two.fitting) == (12, 22)
    for stage in (one, two):
        assert stage.naive is not None
        assert stage.free_lunch is not None
        assert stage.best is not None
        assert seconds_a_sample(stage.best) <= seconds_a_sample(stage.naive)
