"""What an estimate costs, by every way of charging; what a budget buys; when buying beats renting."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from click.testing import CliRunner

from catalog import price
from catalog.errors import RigplanError
from planner.answer import Estimate, Run
from planner.cli import rigplan
from planner.money import charged, old_prices
from planner.question import narrowed
from planner.rank import over_budget, question, ranked
from planner.spec import Spec
from planner.strategy import choices
from planner.tariff import HOURS_A_MONTH
from tests.planner.answers import estimate

NO_POWER_COST = {"usd_per_kwh": 0}


def spec(hardware: dict[str, Any], **parts: Any) -> Spec:
    data = {"sequence_length": 2048, "total": "143000 steps"}
    return Spec.load({"model": {"name": "pythia-1b"}, "data": data, "hardware": hardware, **parts})


def cost(hardware: dict[str, Any], days: float, **parts: Any) -> Run:
    found = answer(hardware, days, **parts).run
    assert found is not None
    return found


def answer(hardware: dict[str, Any], days: float, **parts: Any) -> Estimate:
    asked = spec(hardware, **parts)
    _, choice = next(iter(choices(asked)))
    made = estimate(choice.gpu, choice.count, days=days)
    fields = {"usd_per_gpu_hour": choice.usd_per_gpu_hour, "price": choice.price, "fleet": choice.fleet}
    machine = made.hardware.model_copy(update={**fields, "gpus_per_node": choice.gpus_per_node})
    return charged(asked, made.model_copy(update={"hardware": machine}))


# Pythia-1B as the authors of "$100K or 100 Days" (arXiv 2410.23261) bought it, written off over five years:
# price x days / (5 x 365), the machine at base + cards. Their days are not ours; the cost of given days is.
@pytest.mark.parametrize(
    ("gpu", "count", "card_usd", "days", "usd"),
    [
        ("h100-sxm5-80gb", 4, 30_000, 8, 559),
        ("h100-sxm5-80gb", 8, 30_000, 4, 549),
        ("a100-sxm4-80gb", 4, 19_000, 17.57, 804),
        ("rtx-3090", 2, 1_300, 108, 243),
    ],
)
def test_a_purchase_costs_what_the_brown_study_says(gpu: str, count: int, card_usd: int, days: float, usd: int) -> None:
    hardware = {"gpu": gpu, "count": count, "price": {"buy": {"usd": card_usd, "years": 5}}}
    assert cost(hardware, days, energy=NO_POWER_COST).cost_usd == pytest.approx(usd, rel=0.003)  # a year of 365.25 days


def test_a_purchase_used_half_of_the_time_costs_twice() -> None:
    full = {"gpu": "rtx-3090", "price": {"buy": {"usd": 1300}}}
    half = {"gpu": "rtx-3090", "price": {"buy": {"usd": 1300, "utilization": 0.5}}}
    one, two = (cost(item, 10, energy=NO_POWER_COST).cost_usd for item in (full, half))
    assert one is not None
    assert two == pytest.approx(2 * one)


def test_a_purchase_pays_for_its_electricity_with_the_server_and_the_building() -> None:
    hardware = {"gpu": "h100-sxm5-80gb", "price": {"buy": {"usd": 0, "host_usd": 0}}}
    found = cost(hardware, 10, energy={"usd_per_kwh": 0.1, "pue": 1.5})
    assert found.energy_kwh == pytest.approx(0.7 * 1.82 * 0.75 * 1.5 * 240)  # kW x server x training share x PUE x h
    assert found.cost_usd == pytest.approx(found.energy_kwh * 0.1)
    assert found.cost_lines[-1].what == "electricity"


def test_without_a_price_of_ones_own_a_purchase_names_whose_it_is() -> None:
    found = cost({"gpu": "rtx-3090", "price": {"buy": {}}}, 10)
    assert [line.what for line in found.cost_lines] == ["cards, over 5 years", "hosts, over 5 years", "electricity"]
    assert all(line.source and line.date for line in found.cost_lines)
    assert found.cost_date == price.purchase_offer("rtx-3090").date  # type: ignore[union-attr]


def test_rent_by_the_month_is_for_the_whole_machine() -> None:
    month = HOURS_A_MONTH / 24
    found = cost({"gpu": "a100-sxm4-80gb", "count": 8, "price": {"usd_per_month": 10_000}}, month / 2)
    assert found.cost_usd == pytest.approx(5_000)


def test_nodes_are_charged_whole() -> None:
    hardware = {"gpu": "a100-sxm4-80gb", "count": 9, "gpus_per_node": 8, "price": {"usd_per_node_hour": 20}}
    found = cost(hardware, 1)
    assert found.cost_usd == pytest.approx(2 * 20 * 24)
    assert found.billed_gpu_hours == pytest.approx(16 * 24)


def test_one_gpu_of_a_cloud_that_rents_eight_is_charged_as_eight() -> None:
    hardware = {"gpu": "a100-sxm4-80gb", "price": {"offer": {"provider": "aws"}}}
    found = cost(hardware, 1)
    assert found.cost_usd == pytest.approx(27.44705 * 24)  # p4de.24xlarge, us-east-1, 2026-01-21
    assert found.cost_source is not None
    assert "p4de.24xlarge" in found.cost_source
    assert found.cost_date == "2026-01-21"


def test_spot_is_cheaper_than_on_demand_and_says_what_it_is() -> None:
    spot = cost({"gpu": "a100-sxm4-80gb", "count": 8, "price": {"offer": {"kind": "spot", "provider": "azure"}}}, 1)
    full = cost({"gpu": "a100-sxm4-80gb", "count": 8, "price": {"offer": {"provider": "azure"}}}, 1)
    assert (spot.cost_usd, full.cost_usd) == (pytest.approx(8.5202 * 24), pytest.approx(32.77 * 24))
    assert spot.cost_source is not None
    assert spot.cost_source.startswith("spot azure eastus")


def test_an_offer_that_nobody_makes_says_who_does() -> None:
    found = cost({"gpu": "a100-sxm4-80gb", "price": {"offer": {"provider": "nobody"}}}, 1)
    assert found.cost_usd is None
    assert found.cost_source is not None
    assert "offered by aws, azure" in found.cost_source


def test_a_campus_charges_in_units_of_its_own() -> None:
    hardware = {"gpu": "a100-sxm4-80gb", "count": 2, "price": {"units_per_gpu_hour": 6, "unit": "standard hours"}}
    found = cost(hardware, 1)
    assert (found.units, found.unit, found.cost_usd) == (pytest.approx(6 * 48), "standard hours", None)
    assert found.cost_source == "charged in standard hours; set hardware.price.usd_per_unit to have USD"


def test_units_can_have_a_rate_and_rank_where_there_is_none() -> None:
    tariff = {"units_per_node_hour": 4, "unit": "SU", "usd_per_unit": 0.5}
    found = cost({"gpu": "a100-sxm4-80gb", "count": 3, "gpus_per_node": 4, "price": tariff}, 1)
    assert (found.units, found.cost_usd) == (pytest.approx(96), pytest.approx(48))
    few = answer({"gpu": "a100-sxm4-80gb", "price": {"units_per_gpu_hour": 1}}, 10)
    many = answer({"gpu": "h100-sxm5-80gb", "price": {"units_per_gpu_hour": 9}}, 5)
    assert ranked([many, few], "cost") == [few, many]


def test_buying_beats_renting_after_the_months_in_which_rent_is_the_price() -> None:
    hardware = {"gpu": "rtx-3090", "count": 1, "price": {"buy": {"usd": 900, "host_usd": 100}}}
    even = cost(hardware, 1, energy=NO_POWER_COST).break_even
    assert even is not None
    assert even.buy_usd == 1000
    assert even.months == pytest.approx(1000 / even.rent_usd_per_month)
    offer = price.default_offer("rtx-3090")
    assert offer is not None
    assert even.rent_usd_per_month == pytest.approx(offer.amount_usd * HOURS_A_MONTH)
    assert len(even.sources) == 4


def test_electricity_dearer_than_the_rent_never_breaks_even() -> None:
    even = cost({"gpu": "rtx-3090", "price": {"usd_per_gpu_hour": 0.01}}, 1, energy={"usd_per_kwh": 1}).break_even
    assert even is not None
    assert even.months is None


def test_co2_is_told_where_the_grid_is_known_and_only_there() -> None:
    found = cost({"gpu": "rtx-3090"}, 10, energy={"co2_g_per_kwh": 400})
    assert found.energy_kwh is not None
    assert found.co2_kg == pytest.approx(found.energy_kwh * 0.4)
    assert cost({"gpu": "rtx-3090"}, 10).co2_kg is None


def test_a_price_older_than_90_days_is_said_to_be_old() -> None:
    today = datetime.date.today()
    for age, notes in ((91, 1), (90, 0)):
        dated = {"usd_per_gpu_hour": 1, "date": today - datetime.timedelta(days=age), "source": "a quote"}
        told = old_prices([answer({"gpu": "rtx-3090", "price": dated}, 1)])
        assert len(told) == notes
        assert all(f"OLD PRICES: rtx-3090 {age} days old ({dated['date']}). Before you budget, ask" in n for n in told)


def test_the_budget_says_how_much_training_it_buys() -> None:
    found = answer({"gpu": "rtx-3090", "price": {"usd_per_gpu_hour": 1}}, 10, budget={"usd": 48, "days": 30})
    bought = found.within_budget
    assert bought is not None
    assert (bought.bound, bought.days, bought.usd) == ("usd", pytest.approx(2), pytest.approx(48))
    assert found.throughput is not None
    assert bought.samples == pytest.approx(found.throughput.samples_per_second * 2 * 86_400)


def test_the_most_training_for_a_budget_comes_first() -> None:
    dear = answer({"gpu": "h100-sxm5-80gb", "price": {"usd_per_gpu_hour": 9}}, 5, budget={"usd": 100})
    cheap = answer({"gpu": "rtx-3090", "price": {"usd_per_gpu_hour": 1}}, 10, budget={"usd": 100})
    assert ranked([dear, cheap], "amount") == [cheap, dear]


def test_limits_on_the_command_line_make_the_question() -> None:
    plain = spec({"gpu": "rtx-3090"})
    assert question(narrowed(plain, None, "30d", None)) == "the cheapest that finishes in 30 days"
    assert question(narrowed(plain, None, None, "5000")) == "the fastest under 5,000 USD"
    both = narrowed(plain, "time", "30 days", "$5,000")
    assert question(both) == "the fastest that finishes in 30 days and under 5,000 USD"
    assert question(narrowed(plain, "amount", None, "20k USD")) == "the most training for 20,000 USD"


def test_a_deadline_is_days_from_today() -> None:
    by = datetime.date.today() + datetime.timedelta(days=20)
    asked = spec({"gpu": "rtx-3090"}, budget={"deadline": by})
    reason = over_budget(estimate("rtx-3090", days=30), asked.budget)
    assert reason == f"over budget: 30 days is over the 20 days until {by} by 10 days"


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"price": {"usd_per_gpu_hour": -1}}, "price.usd_per_gpu_hour: found -1, wanted an amount of at least 0"),
        ({"price": {"usd_per_month": 5, "usd_per_gpu_hour": 1}}, "found usd_per_gpu_hour and usd_per_month, wanted"),
        ({"price": {"usd_per_gpu_hour": 1, "currency": "EUR"}}, "currency: found 'EUR', wanted USD: convert other"),
        ({"price": {"buy": {"utilization": 0}}}, "found 0, wanted a number above 0 and at most 1"),
        ({"budget": {"usd": 0}}, "budget.usd: found 0, wanted a number above 0"),
        ({"budget": {"deadline": "2020-01-01"}}, "deadline: found 2020-01-01, which has passed; wanted a day"),
        ({"budget": {"deadline": "soon"}}, "budget.deadline: found 'soon', wanted a date such as 2027-06-30"),
        ({"energy": {"pue": 0.5}}, "energy.pue: found 0.5, wanted a number of at least 1"),
        ({"campaign": {"runs": 2, "failed": -0.1}}, "campaign.failed: found -0.1, wanted a number of at least 0"),
    ],
)  # fmt: skip
def test_mistakes_about_money_are_told_in_one_line(parts: dict[str, Any], said: str) -> None:
    hardware = {"gpu": "rtx-3090", **({"price": parts.pop("price")} if "price" in parts else {})}
    with pytest.raises(RigplanError) as told:
        spec(hardware, **parts)
    assert said in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--under", "0"], "--under: found 0, wanted more than nothing"),
        (["--under", "-5"], "'-5' is not an amount of money"),
        (["--within", "soon"], "'soon'"),
        (["--objective", "amount"], "objective amount: no budget is given"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line_too(options: list[str], said: str) -> None:
    done = CliRunner().invoke(rigplan, ["plan", "examples/pythia-1b.yaml", *options])
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
