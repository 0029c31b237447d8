"""Question: how a combination is to be answered, and what of a spec the command line narrows. No heavy imports."""

from __future__ import annotations

from dataclasses import dataclass

from catalog import presets
from catalog.errors import RigplanError
from catalog.presets import Preset
from catalog.units import parse_seconds, parse_usd
from planner.money_spec import BudgetSpec
from planner.spec import Spec
from planner.strategy import HardwareChoice, Strategy

DAY_S = 86_400.0
NO_OTHER = {"config": None, "module": None}  # what a model's name takes the place of

Combination = tuple[Strategy, HardwareChoice]


@dataclass(frozen=True, slots=True)
class How:
    """`timed`: with step time, days and cost. `whole`: where no micro-batch fits, an estimate at the smallest instead
    of the reason. `read_off`: a given micro-batch may be read off two traces of smaller ones."""

    timed: bool = True
    whole: bool = False
    read_off: bool = False


def narrowed(
    spec: Spec, objective: str | None, within: str | None, under: str | None, models: str | None = None
) -> Spec:
    """The spec with an objective, limits and models of its own. A limit of money alone asks for the fastest; models
    alone for the largest.

    Raises RigplanError for a time or an amount that cannot be read or is zero, and for a model that is not known.
    """
    if objective is None and models is not None:
        objective = "model"
    elif objective is None and under is not None and within is None:
        objective = "time"
    limits = spec.budget or BudgetSpec()
    if within is not None:
        days = parse_seconds(within) / DAY_S
        limits = limits.model_copy(update={"days": _above_zero(days, "--within", within)})
    if under is not None:
        limits = limits.model_copy(update={"usd": _above_zero(parse_usd(under), "--under", under)})
    changes: dict[str, object] = {} if limits == BudgetSpec() else {"budget": limits}
    if objective is not None:
        changes["objective"] = objective
    if models is not None:
        changes["models"] = tuple(word.strip() for word in models.split(",") if word.strip())
    return spec.model_copy(update=changes)


def check_budget(spec: Spec) -> None:
    """Raise RigplanError where the objective is what a budget buys, and nothing limits it."""
    budget = spec.budget or BudgetSpec()
    if spec.objective in ("amount", "model") and budget.usd is None and budget.most_days is None:
        raise RigplanError(f"objective {spec.objective}: no budget is given; wanted budget.usd or budget.days")


def by_model(spec: Spec) -> list[Spec]:
    """A spec for each of its `models`, the smallest first; the spec alone where it lists none.

    A word is a preset's name or the beginning of several: `pythia` is the whole family. Raises RigplanError for a word
    that is neither.
    """
    if not spec.models:
        return [spec]
    found = {preset.name: preset for word in spec.models for preset in _presets(word)}
    ordered = sorted(found.values(), key=lambda preset: preset.parameters)
    return [
        spec.model_copy(update={"models": (), "model": spec.model.model_copy(update={"name": preset.name, **NO_OTHER})})
        for preset in ordered
    ]


def _presets(word: str) -> list[Preset]:
    exact = presets.lookup(word)
    if exact is not None:
        return [exact]
    return [item for item in presets.presets() if item.name.startswith(f"{word.lower()}-")] or [presets.find(word)]


def _above_zero(value: float, option: str, text: str) -> float:
    if value <= 0:
        raise RigplanError(f"{option}: found {text}, wanted more than nothing")
    return value


__all__ = ["Combination", "How", "by_model", "check_budget", "narrowed"]
