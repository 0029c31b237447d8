"""Question: how a combination is to be answered, and what of a spec the command line narrows. No heavy imports."""

from __future__ import annotations

from dataclasses import dataclass

from catalog.errors import RigplanError
from catalog.units import parse_seconds, parse_usd
from planner.money_spec import BudgetSpec
from planner.spec import Spec
from planner.strategy import HardwareChoice, Strategy

DAY_S = 86_400.0

Combination = tuple[Strategy, HardwareChoice]


@dataclass(frozen=True, slots=True)
class How:
    """`timed`: with step time, days and cost. `whole`: where no micro-batch fits, an estimate at the smallest instead
    of the reason. `read_off`: a given micro-batch may be read off two traces of smaller ones."""

    timed: bool = True
    whole: bool = False
    read_off: bool = False


def narrowed(spec: Spec, objective: str | None, within: str | None, under: str | None) -> Spec:
    """The spec with an objective and limits of its own. A limit of money alone asks for the fastest.

    Raises RigplanError for a time or an amount that cannot be read or is zero.
    """
    if objective is None and under is not None and within is None:
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
    changed = spec.model_copy(update=changes)
    if changed.objective == "amount" and changed.budget is None:
        raise RigplanError("objective amount: no budget is given; wanted budget.usd or budget.days")
    return changed


def _above_zero(value: float, option: str, text: str) -> float:
    if value <= 0:
        raise RigplanError(f"{option}: found {text}, wanted more than nothing")
    return value


__all__ = ["Combination", "How", "narrowed"]
