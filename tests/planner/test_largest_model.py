"""Which model a budget trains: several of them in one plan, the largest first."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

import planner
from catalog.errors import RigplanError
from planner import search
from planner.answer import Plan
from planner.cli import rigplan
from planner.question import by_model, narrowed
from planner.report.export import written
from planner.report.plan import page
from planner.report.progress import COUNTED
from planner.spec import Spec
from tests.planner.answers import estimate

PARAMETERS = {"pythia-70m": 70, "pythia-160m": 160, "pythia-410m": 410}
USD_A_PARAMETER = 10.0


def spec(**more: Any) -> Spec:
    parts = {
        "model": {"name": "pythia-1b"},
        "data": {"total": "1000 steps"},
        "hardware": {"gpu": "rtx-3090", "price": {"usd_per_gpu_hour": 1}},
        "models": list(PARAMETERS),
        "objective": "model",
    }
    return Spec.load({**parts, **more})


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger models take longer, 10 days per parameter, at a USD an hour."""

    def outcomes(asked: Spec, combinations: Any, *_: Any, **__: Any) -> list[Any]:
        size = PARAMETERS[asked.model.name or ""]
        made = estimate("rtx-3090", days=size / 10, usd=size * USD_A_PARAMETER)
        return [made.model_copy(update={"parameters": size})] * len(combinations)

    monkeypatch.setattr(search, "outcomes", outcomes)


@pytest.mark.usefixtures("answered")
def test_the_largest_model_within_the_budget_comes_first() -> None:
    found: Plan = planner.plan(spec(budget={"usd": 2000}))
    assert [item.model for item in found.ranked] == ["pythia-160m", "pythia-70m"]
    assert [(out.model, out.reason) for out in found.excluded] == [
        ("pythia-410m", "over budget: 4,100 USD is over the 2,000 USD by 2,100 USD")
    ]
    assert found.question == "the largest model under 2,000 USD"
    text = page(found)
    assert "the largest model under 2,000 USD: pythia-160m, 1 x rtx-3090" in text
    assert "model" in text.splitlines()[3]


@pytest.mark.usefixtures("answered")
def test_progress_names_the_model_that_it_is_about() -> None:
    said: list[str] = []
    planner.plan(spec(budget={"usd": 2000}), progress=said.append)
    assert said[:3] == [f"{name}: looking up what is known of 1 combination" for name in PARAMETERS]
    counted = COUNTED.match("pythia-70m: 3 of 8 combinations worked out")
    assert counted is not None
    assert counted.groups() == ("3", "8")


@pytest.mark.usefixtures("answered")
def test_a_report_names_the_model_that_was_found() -> None:
    asked = spec(budget={"usd": 2000})
    found = planner.plan(asked)
    text = written(".md", asked, found, ["nsf"])
    assert "**The largest model under 2,000 USD: pythia-160m on 1 x rtx-3090" in text
    assert "| final | pythia-160m / 1000 steps |" in text
    assert "pythia-1b" not in text


@pytest.mark.usefixtures("answered")
def test_the_other_objectives_rank_the_models_too() -> None:
    assert [item.model for item in planner.plan(spec(objective="cost")).ranked] == list(PARAMETERS)


def test_a_family_is_all_its_presets_by_size_and_each_once() -> None:
    found = by_model(spec(models=["pythia", "pythia-1b"]))
    names = [one.model.name for one in found]
    assert names[:3] == ["pythia-14m", "pythia-31m", "pythia-70m"]
    assert len(names) == len(set(names))
    assert {one.models for one in found} == {()}
    assert by_model(spec(models=[]))[0].model.name == "pythia-1b"


def test_models_on_the_command_line_ask_for_the_largest() -> None:
    asked = narrowed(spec(models=[], objective="cost"), None, None, "5000", "pythia-70m, pythia-160m")
    assert (asked.objective, asked.models) == ("model", ("pythia-70m", "pythia-160m"))


def test_an_estimate_and_an_unknown_model_are_refused() -> None:
    with pytest.raises(RigplanError, match="leave models out"):
        planner.estimate(spec())
    with pytest.raises(RigplanError, match="unknown model 'pythja'"):
        by_model(spec(models=["pythja"]))


def test_a_budget_without_a_limit_is_none() -> None:
    for objective in ("amount", "model"):
        with pytest.raises(RigplanError, match=f"objective {objective}: no budget is given"):
            planner.plan(spec(objective=objective, budget={}))


def test_without_a_budget_there_is_no_largest_model() -> None:
    done = CliRunner().invoke(rigplan, ["plan", "examples/pythia-1b.yaml", "--models", "pythia"])
    assert done.exit_code == 2
    assert done.stderr == "rigplan: error: objective model: no budget is given; wanted budget.usd or budget.days\n"
