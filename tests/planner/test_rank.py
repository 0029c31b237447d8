"""The order of a plan, its front, and what a budget leaves."""

from __future__ import annotations

from planner.rank import over_budget, pareto, ranked
from planner.spec import BudgetSpec
from tests.planner.answers import estimate

CHEAP = estimate("rtx-3090", days=100, usd=1000)
QUICK = estimate("h100-sxm5-80gb", 8, days=5, usd=4000)
MIDDLE = estimate("a100-sxm4-80gb", 4, days=20, usd=2000)
BEATEN = estimate("rtx-a6000", days=110, usd=1500)
UNPRICED = estimate("own-card", days=50, usd=None)
SLOW_UNPRICED = estimate("own-card", days=90, usd=None)
ALL = [SLOW_UNPRICED, QUICK, BEATEN, UNPRICED, CHEAP, MIDDLE]


def test_by_cost_the_cheapest_comes_first_and_the_unpriced_last_by_time() -> None:
    assert ranked(ALL, "cost") == [CHEAP, BEATEN, MIDDLE, QUICK, UNPRICED, SLOW_UNPRICED]


def test_by_time_the_quickest_comes_first_with_or_without_a_price() -> None:
    assert ranked(ALL, "time") == [QUICK, MIDDLE, UNPRICED, SLOW_UNPRICED, CHEAP, BEATEN]


def test_a_borderline_plan_does_not_stand_before_a_fitting_one_of_near_equal_cost() -> None:
    unsure, sure = estimate(days=464, usd=2229, verdict="borderline"), estimate(days=477, usd=2291)
    far_dearer = estimate(days=500, usd=2400)
    assert ranked([unsure, far_dearer, sure], "cost") == [sure, unsure, far_dearer]
    assert ranked([unsure, far_dearer, sure], "time") == [sure, unsure, far_dearer]
    assert pareto([unsure, sure]) == [unsure]  # the front is of time and cost alone; the verdict stands beside it


def test_pareto_puts_the_front_before_what_it_beats() -> None:
    assert ranked(ALL, "pareto") == [QUICK, MIDDLE, CHEAP, UNPRICED, SLOW_UNPRICED, BEATEN]


def test_the_front_holds_what_nothing_beats_in_both_time_and_cost() -> None:
    assert pareto(ALL) == [QUICK, MIDDLE, CHEAP]


def test_equals_keep_the_order_of_the_spec() -> None:
    twins = [estimate("rtx-3090", checkpointing=word) for word in ("none", "full", "selective")]
    assert [item.strategy.checkpointing for item in ranked(twins, "cost")] == ["none", "full", "selective"]
    assert len(pareto(twins)) == 1


def test_without_a_total_seconds_a_sample_decide() -> None:
    small = estimate(days=None, global_batch=8)
    large = estimate(days=None, global_batch=1024)
    assert ranked([small, large], "cost") == [large, small]


def test_a_budget_says_by_how_much_it_is_exceeded() -> None:
    assert over_budget(CHEAP, BudgetSpec(days=90)) == "over budget: 100 days is over the 90 days by 10 days"
    assert over_budget(QUICK, BudgetSpec(usd=3000)) == "over budget: 4,000 USD is over the 3,000 USD by 1,000 USD"
    assert over_budget(QUICK, BudgetSpec(usd=4000, days=5)) is None
    assert over_budget(QUICK, None) is None


def test_an_unknown_cost_cannot_be_held_to_a_budget() -> None:
    reason = over_budget(UNPRICED, BudgetSpec(usd=10_000))
    assert reason == "over budget: its cost is not known, so it cannot be held to 10,000 USD"
