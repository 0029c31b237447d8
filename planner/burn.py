"""Burn: the use of a machine month by month, what each is charged, and what leaves the account in it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from planner.answer import Month
from planner.billing import Usage, bill
from planner.tariff import Tariff

DAY_H = 24.0
DECEMBER = 12
MOST_DAYS = 36_525  # a hundred years


def burn(terms: Tariff, fleet: int, usage: Usage, first_day: datetime.date) -> list[Month]:
    """The calendar months of a use that begins on `first_day`: pairs of busy GPUs and days, one after the other.

    What is bought is paid for in the first month and charged over its years; everything else is paid as it is used.
    None are listed where the use is longer than anybody plans by the month.
    """
    if sum(days for _, days in usage) > MOST_DAYS:
        return []
    at_once_usd = sum(rate.at_once_usd or 0.0 for rate in terms.rates)
    bought = [rate.at_once_usd is not None for rate in terms.rates]
    months: list[Month] = []
    for month, within in _months(usage, first_day):
        cost = bill(terms, fleet, within)
        running_usd = sum(line.usd or 0.0 for line, once in zip(cost.lines, bought, strict=True) if not once)
        months.append(
            Month(
                month=month,
                days=sum(days for _, days in within),
                gpu_hours=sum(busy * days * DAY_H for busy, days in within),
                cost_usd=cost.usd,
                paid_usd=None if cost.usd is None else running_usd + (0.0 if months else at_once_usd),
                units=cost.units,
            )
        )
    return months


def _months(usage: Usage, first_day: datetime.date) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    """(name, use within it) of each calendar month, until all is used."""
    day, room = first_day, float((_next_month(first_day) - first_day).days)
    within: list[tuple[int, float]] = []
    for busy, days in usage:
        while days > 0:
            part = min(days, room)
            within.append((busy, part))
            days, room = days - part, room - part
            if room <= 0:
                yield f"{day:%Y-%m}", within
                day, within = _next_month(day), []
                room = float((_next_month(day) - day).days)
    if within:
        yield f"{day:%Y-%m}", within


def _next_month(day: datetime.date) -> datetime.date:
    return datetime.date(day.year + day.month // DECEMBER, day.month % DECEMBER + 1, 1)


__all__ = ["burn"]
