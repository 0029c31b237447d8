"""Month by month: what each is charged, and what leaves the account in it."""

from __future__ import annotations

import datetime
import json

import pytest

from planner.answer import Estimate, Month, Plan
from planner.money import charged, month_by_month
from planner.report import burn as printed
from planner.report.export import written
from planner.spec import Spec
from planner.strategy import choices
from tests.planner.answers import estimate

NEXT_YEAR = datetime.date.today().year + 1
RENT = {"usd_per_gpu_hour": 2}


def spec(price: dict[str, object], start: str | None = f"{NEXT_YEAR}-01-15", **more: object) -> Spec:
    return Spec.load(
        {
            "model": {"name": "pythia-1b"},
            "data": {"total": "1000 steps"},
            "hardware": {"gpu": "rtx-3090", "count": 8, "price": price},
            "energy": {"usd_per_kwh": 0.1},
            "budget": {"start": start},
            **more,
        }
    )


def answer(asked: Spec, days: float) -> Estimate:
    _, choice = next(iter(choices(asked)))
    made = estimate("rtx-3090", choice.count, days=days)
    fields = {"price": choice.price, "usd_per_gpu_hour": choice.usd_per_gpu_hour, "fleet": choice.fleet}
    made = made.model_copy(update={"hardware": made.hardware.model_copy(update=fields)})
    return month_by_month(asked, charged(asked, made))


def months(found: Estimate) -> list[Month]:
    spent = found.campaign or found.run
    assert spent is not None
    return spent.months


def test_a_run_is_spread_over_calendar_months_from_its_first_day() -> None:
    found = months(answer(spec(RENT), 50))
    assert [month.month for month in found] == [f"{NEXT_YEAR}-01", f"{NEXT_YEAR}-02", f"{NEXT_YEAR}-03"]
    assert found[0].days == 17  # the 15th to the 31st
    assert sum(month.days for month in found) == pytest.approx(50)
    assert found[0].cost_usd == found[0].paid_usd == pytest.approx(17 * 24 * 8 * 2)


def test_the_months_add_up_to_the_whole_and_cross_the_year() -> None:
    found = answer(spec(RENT, f"{NEXT_YEAR}-11-20"), 400)
    assert found.run is not None
    assert sum(month.cost_usd or 0 for month in found.run.months) == pytest.approx(found.run.cost_usd)
    assert sum(month.gpu_hours for month in found.run.months) == pytest.approx(found.run.gpu_hours)
    assert f"{NEXT_YEAR + 1}-01" in [month.month for month in found.run.months]


def test_what_is_bought_is_paid_at_once_and_charged_over_its_years() -> None:
    bought = months(answer(spec({"buy": {"usd": 1300, "years": 5, "host_usd": 10500}}), 60))
    capital = 8 * 1300 + 10500
    power = [(month.cost_usd or 0) - capital * month.days / (5 * 365.25) for month in bought]
    assert [month.paid_usd for month in bought] == pytest.approx([capital + power[0], *power[1:]])
    assert bought[0].paid_usd == pytest.approx(capital, rel=0.05)


def test_a_campaign_burns_by_the_gpus_that_are_busy() -> None:
    plan = {"runs": 12, "gpus_per_run": 1, "production": 0, "contingency": 0.5}
    found = answer(spec(RENT, campaign=plan), 17)  # 8 at once in January, 4 from February on, then half again
    assert found.campaign is not None
    first, *rest = found.campaign.months
    assert first.gpu_hours == pytest.approx(8 * 17 * 24)
    assert rest[0].gpu_hours < 4 * 18 * 24 + 8 * 10 * 24
    assert sum(month.cost_usd or 0 for month in found.campaign.months) == pytest.approx(found.campaign.cost_usd)


def test_units_of_a_programme_are_burned_too() -> None:
    found = months(answer(spec({"units_per_gpu_hour": 3, "unit": "SU"}), 30))
    assert sum(month.units or 0 for month in found) == pytest.approx(30 * 24 * 8 * 3)
    assert {month.cost_usd for month in found} == {None}


def test_the_table_is_in_every_form_of_the_report() -> None:
    asked = spec(RENT)
    found = Plan(ranked=[answer(asked, 50)])
    for ending in (".html", ".md"):
        assert "Month by month, on 8 x rtx-3090" in written(ending, asked, found, [])
    plain = json.loads(written(".json", asked, found, []))
    assert [row["month"] for row in plain["ranked"][0]["run"]["months"]] == [
        month.month for month in months(found.ranked[0])
    ]


def test_one_month_of_rent_needs_no_table_and_many_months_are_shortened() -> None:
    short, long = answer(spec(RENT), 3).run, answer(spec(RENT), 1500).run
    assert short is not None
    assert long is not None
    assert printed.section(short, "here") == []
    lines = printed.section(long, "here")
    assert any("more" in line for line in lines[2].splitlines())
    assert f"{long.cost_usd:,.0f}" in lines[2].splitlines()[-1]


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"start": "2020-01-01"}, "budget.start: found 2020-01-01, which has passed; wanted today"),
        ({"start": f"{NEXT_YEAR}-05-01", "deadline": f"{NEXT_YEAR}-04-01"}, "wanted a day after the start"),
        ({"start": "soon"}, "found 'soon', wanted a date such as 2027-01-15"),
    ],
)
def test_a_start_in_the_past_or_after_the_deadline_is_refused(budget: dict[str, str], said: str) -> None:
    with pytest.raises(Exception, match=said):
        spec(RENT, budget=budget)


def test_a_deadline_counts_from_the_start() -> None:
    by = datetime.date(NEXT_YEAR, 2, 1)
    asked = spec(RENT, budget={"start": f"{NEXT_YEAR}-01-02", "deadline": str(by)})
    assert asked.budget is not None
    assert asked.budget.most_days == 30


def test_what_takes_longer_than_a_century_is_not_told_month_by_month() -> None:
    found = answer(spec(RENT), 4e6)
    assert found.run is not None
    assert found.run.months == []
    assert found.run.cost_usd is not None
