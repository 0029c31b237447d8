"""The prices of one accelerator as a page: what a plan uses, whose offers that is the median of, the others, to buy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from statistics import median

from click import wrap_text

from catalog import price, units
from catalog.price import Offer
from planner.report.layout import several, table

SHOWN_TO_BUY = 8
MONTH = 7  # letters of a date


def page(name: str, assumption: str, today: date, width: int) -> str:
    """The whole page; `assumption` is what the name was taken for."""
    hourly, bought, every = price.default_offer(name), price.purchase_offer(name), price.offers(name)
    used = price.in_median(name)
    sources = _Sources()
    lines = [name]
    if hourly:
        lines.append(f"A plan uses {hourly.usd_per_gpu_hour:.2f} USD per GPU-hour: {hourly.cost_source}.")
        lines.append(age(hourly.date, today, used))
        lines += [f"Assumed: {hourly.assumption}."] if hourly.assumption else []
    else:
        lines.append(price.cost_unknown_reason(name))
        lines += [f"Assumed: {assumption}."] if assumption else []
    if bought:
        asked = f"{bought.kind}, {bought.date or 'undated'}; {bought.source}"
        lines.append(f"To buy: {units.usd(bought.amount_usd)} ({asked}).")
    lines = [wrap_text(line, width) for line in lines]
    if used:
        lines += ["", "By the hour, each provider by the median of its offers", _providers(used, sources)]
    others = [offer for offer in every if offer.usd is None and offer not in used]
    if others:
        lines += ["", "By the hour, which no plan uses by itself", _others(others, sources)]
    to_buy = [offer for offer in every if offer.usd is not None]
    if to_buy:
        lines += ["", "To buy, the newest first", _to_buy(to_buy, sources)]
    lines += sources.listed(width)
    return "\n".join([*lines, "Every offer: --json"] if every else lines)


def age(newest: str, today: date, used: Sequence[Offer] = ()) -> str:
    """How old prices are; loud when even the newest is older than the limit."""
    limit = price.STALE_AFTER_DAYS
    days = (today - date.fromisoformat(newest)).days
    if days > limit:
        return f"OLD PRICES: the newest is {days} days old ({newest}). Before you budget, {price.RENEW}."
    old = sum(offer.is_stale(today) for offer in used)
    also = f"; {old} of the {len(used)} offers are older than {limit} days" if old else ""
    return f"Newest price of {newest}, {days} days ago{also}."


class _Sources:
    """Where prices are from, each with a number that the rows of tables bear."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def of(self, offers: Iterable[Offer]) -> str:
        found = {self.numbers.setdefault(_told(offer), len(self.numbers) + 1) for offer in offers}
        return ",".join(map(str, sorted(found)))

    def listed(self, width: int) -> list[str]:
        lines = [
            wrap_text(text, width, initial_indent=f"  {number:>2}  ", subsequent_indent=" " * 6)
            for text, number in self.numbers.items()
        ]
        return ["", "Sources", *lines] if lines else []


def _told(offer: Offer) -> str:
    """The list that an offer stands in; what that list cites for each of its rows is in --json."""
    return offer.source.partition("; its source ")[0].removeprefix("github ")


def _providers(used: Sequence[Offer], sources: _Sources) -> str:
    groups: defaultdict[str, list[Offer]] = defaultdict(list)
    for offer in used:
        groups[offer.provider].append(offer)
    middle = {name: median(offer.amount_usd for offer in group) for name, group in groups.items()}
    rows = [
        [f"{middle[name]:.2f}", name, str(len(groups[name])), _dates(groups[name]), sources.of(groups[name])]
        for name in sorted(groups, key=lambda name: (middle[name], name))
    ]
    rows.append([f"{median(middle.values()):.2f}", "the median", str(len(used)), _dates(used), ""])
    return table(rows, ["USD/GPU-h", "provider", "offers", "dates", "source"], "rlrll")


def _others(others: Sequence[Offer], sources: _Sources) -> str:
    groups: defaultdict[str, list[Offer]] = defaultdict(list)
    for offer in others:
        old = "" if offer.kind in ("spot", "marketplace") else "old "  # or without a date
        groups[f"{old}{offer.kind}"].append(offer)
    rows = [
        [_span(group), kind, str(len(group)), _dates(group, MONTH), sources.of(group)] for kind, group in groups.items()
    ]
    return table(rows, ["USD/GPU-h", "kind", "offers", "months", "source"], "rlrll")


def _span(group: Sequence[Offer]) -> str:
    low, high = min(offer.amount_usd for offer in group), max(offer.amount_usd for offer in group)
    return f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"


def _dates(group: Sequence[Offer], letters: int | None = None) -> str:
    """From when to when, each date in so many letters."""
    dated = sorted(offer.date[:letters] for offer in group if offer.date)
    if not dated:
        return "undated"
    return dated[0] if dated[0] == dated[-1] else f"{dated[0]} to {dated[-1]}"


def _to_buy(offers: Sequence[Offer], sources: _Sources) -> str:
    newest = sorted(offers, key=lambda offer: offer.date, reverse=True)
    shown = newest[:SHOWN_TO_BUY]
    rows = [
        [f"{offer.amount_usd:,.0f}", offer.kind, _cut(offer.instance), offer.date or "undated", sources.of([offer])]
        for offer in shown
    ]
    text = table(rows, ["USD", "kind", "what", "date", "source"], "rllll")
    left = len(newest) - len(shown)
    return f"{text}\n  ... and {several(left, 'older one')}" if left else text


def _cut(text: str, room: int = 32) -> str:
    return text if len(text) <= room else f"{text[: room - 2]}.."


__all__ = ["age", "page"]
