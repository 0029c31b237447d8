"""The months of a run or campaign as a table: what each is charged, and the sum so far. No numbers are made here."""

from __future__ import annotations

from itertools import accumulate

from planner.answer import Spent
from planner.report.layout import few_digits, length, table

SHOWN = 24  # months before the rest is told in a row


def rows(spent: Spent) -> tuple[list[str], list[list[str]]]:
    """Headers and rows; no rows for a use of one month that is paid as it is charged."""
    months = spent.months
    bought = any(month.paid_usd != month.cost_usd for month in months)
    if len(months) < 2 and not bought:
        return [], []
    if spent.cost_usd is None and spent.unit is not None:
        headers, amounts = [spent.unit, "so far"], [[month.units or 0.0] for month in months]
    elif spent.cost_usd is None:
        headers, amounts = [], [[] for _ in months]
    elif bought:
        headers = ["charged USD", "paid USD", "paid so far"]
        amounts = [[month.cost_usd or 0.0, month.paid_usd or 0.0] for month in months]
    else:
        headers, amounts = ["USD", "so far"], [[month.cost_usd or 0.0] for month in months]
    sums = list(accumulate(amount[-1] for amount in amounts)) if headers else []
    body = []
    for at, (month, amount) in enumerate(zip(months, amounts, strict=True)):
        money = [*amount, sums[at]] if headers else []
        body.append([month.month, length(month.days), few_digits(month.gpu_hours), *map(_whole, money)])
    return ["month", "days", "GPU-h", *headers], _shortened(body)


def section(spent: Spent, whose: str) -> list[str]:
    """The lines of a terminal's page; none where one month says it all."""
    headers, body = rows(spent)
    return ["", f"Month by month, {whose}", table(body, headers, "l" + "r" * (len(headers) - 1))] if body else []


def _whole(amount: float) -> str:
    return f"{amount:,.0f}"


def _shortened(body: list[list[str]]) -> list[list[str]]:
    """The first months and the last, with a row that says how many lie between."""
    if len(body) <= SHOWN:
        return body
    between = [f"... {len(body) - SHOWN} more", *[""] * (len(body[0]) - 1)]
    return [*body[: SHOWN - 1], between, body[-1]]


__all__ = ["rows", "section"]
