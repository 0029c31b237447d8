"""What an accelerator costs, by the hour or to buy: dated offers, and one deterministic rule to pick a number."""

from __future__ import annotations

import csv
import datetime
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Literal, get_args

from catalog import refresh, store
from catalog.errors import RigplanError

Kind = Literal["on-demand", "marketplace", "spot", "street", "msrp", "quote", "academic", "estimate"]

STALE_AFTER_DAYS = 90
RENEW = (
    "ask what a GPU costs today and give it in the spec (price: {usd_per_gpu_hour: ...} under hardware), "
    "or fetch newer prices with `rigplan prices --refresh`"
)
"""What to do about prices that are older than that."""
_RECENT_DAYS = 365
"""Offers older than this against the newest of the snapshot are left out of the default."""
_CARD_ALONE = ("card only", "card/module only", "card/module")


@dataclass(frozen=True, slots=True)
class Offer:
    """A price somebody asked on a date. Exactly one of the two amounts is set; both are for one accelerator."""

    accelerator: str
    """Canonical name, or the spelling of the source where that leaves the device open."""
    kind: Kind
    usd_per_gpu_hour: float | None
    usd: float | None
    provider: str
    region: str
    instance: str
    count: int
    """Accelerators in the instance or system the price was asked for."""
    date: str
    """ISO date, month or year; empty when the source has none."""
    source: str
    notes: str = ""
    date_from: str = ""
    """Of a median over several offers: the oldest date in it (``date`` is the newest)."""
    assumption: str = ""

    @property
    def amount_usd(self) -> float:
        """The amount asked: USD per GPU-hour, or USD to buy."""
        return self.usd_per_gpu_hour if self.usd_per_gpu_hour is not None else self.usd or 0.0

    @property
    def cost_source(self) -> str:
        """Where the number comes from, one line for a report."""
        return f"{self.kind}, {self.source}"

    @property
    def cost_date(self) -> str:
        """When it was asked: one date, or "oldest to newest"."""
        return f"{self.date_from} to {self.date}" if self.date_from and self.date_from != self.date else self.date

    def age_days(self, today: datetime.date) -> int | None:
        """Days since the newest date in the offer; None when it has no date."""
        return age_days(self.date, today)

    def is_stale(self, today: datetime.date) -> bool:
        """Whether the price is older than 90 days, or undated."""
        age = self.age_days(today)
        return age is None or age > STALE_AFTER_DAYS


def age_days(asked: str, today: datetime.date) -> int | None:
    """Days since a date, or since the newest of "oldest to newest"; None where there is none."""
    newest = _as_date(asked.rpartition(" to ")[2])
    return (today - newest).days if newest else None


def _as_date(text: str) -> datetime.date | None:
    """The first day of what may be a date, a month or a year."""
    parts = text.split("-") if text else []
    if not 1 <= len(parts) <= 3 or not all(part.isdigit() for part in parts):
        return None
    year, month, day = [int(part) for part in parts] + [1] * (3 - len(parts))
    return datetime.date(year, month, day)


def _device(spelling: str) -> tuple[str, str]:
    """Canonical name and the assumption behind it; the spelling itself where it leaves the device open."""
    found = store.lookup(spelling)
    return (found.name, found.assumption) if found else (spelling, "")


def _rows(name: str) -> list[dict[str, str]]:
    with (store.DATA / "prices" / name).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@cache
def cloud_offers() -> tuple[Offer, ...]:
    """Every hourly price of the snapshot and of a refresh, per GPU; a row with on-demand and spot gives two offers."""
    offers: list[Offer] = []
    for row in refresh.over(_rows("cloud.csv")):
        name, assumption = _device(row["accelerator"])
        auction = "marketplace" in row["notes"] or "[marketplace]" in row["instance_type"]
        listed: Kind = "marketplace" if auction else "on-demand"
        prices: tuple[tuple[Kind, str], ...] = (
            (listed, row["price_usd_per_hour"]),
            ("spot", row["spot_price_usd_per_hour"]),
        )
        offers.extend(
            Offer(
                accelerator=name,
                kind=kind,
                usd_per_gpu_hour=float(price) / int(row["count"]),
                usd=None,
                provider=row["provider"],
                region=row["region"],
                instance=row["instance_type"],
                count=int(row["count"]),
                date=row["as_of"],
                source=row["source"],
                notes=row["notes"],
                assumption=assumption,
            )
            for kind, price in prices
            if price
        )
    return tuple(offers)


@cache
def purchase_offers() -> tuple[Offer, ...]:
    """Every price to buy, for one accelerator: a system's price is divided by its accelerators."""
    offers: list[Offer] = []
    for row in _rows("purchase.csv"):
        if not row["accelerator"] or not row["price_usd"]:
            continue  # hosts, switches, electricity and ratios belong to no accelerator
        name, assumption = _device(row["accelerator"])
        count = int(row["n_accelerators"] or 1)
        whole = row["price_basis"].startswith(("per system", "per node"))
        offers.append(
            Offer(
                accelerator=name,
                kind=_purchase_kind(row["kind"]),
                usd_per_gpu_hour=None,
                usd=float(row["price_usd"]) / (count if whole else 1),
                provider="",
                region="",
                instance=row["system"],
                count=count,
                date=row["as_of"],
                source=row["source"],
                notes=row["notes"],
                assumption=assumption,
            )
        )
    return tuple(offers)


def _purchase_kind(text: str) -> Kind:
    kinds: dict[str, Kind] = {
        "street": "street",
        "msrp": "msrp",
        "quote": "quote",
        "academic": "academic",
        "estimate": "estimate",
    }
    if text not in kinds:
        raise RigplanError(f"Unknown kind of purchase price {text!r}; wanted one of {', '.join(kinds)}.")
    return kinds[text]


@cache
def snapshot_date() -> str:
    """The newest date of the hourly prices."""
    return max(offer.date for offer in cloud_offers())


def offers(accelerator_name: str) -> tuple[Offer, ...]:
    """Every offer for the accelerator: on-demand, marketplace, spot, then to buy; the cheapest of each kind first."""
    name = _device(accelerator_name)[0]
    found = [o for o in (*cloud_offers(), *purchase_offers()) if o.accelerator == name]
    order = {kind: place for place, kind in enumerate(get_args(Kind))}
    return tuple(sorted(found, key=lambda o: (order[o.kind], o.amount_usd, o.provider, o.date)))


@cache
def default_offer(accelerator_name: str) -> Offer | None:
    """The hourly price used when a spec names none, or None when nobody in the snapshot rents this device.

    The rule: on-demand prices dated within a year of the newest price of the snapshot; per provider the median over its
    instances of the price per GPU-hour; then the median over the providers. Where nobody lists an on-demand price the
    same rule takes marketplace offers, and says so. Spot prices are never used: they can be taken away.
    """
    used = in_median(accelerator_name)
    return _median_offer(used[0].accelerator, used[0].kind, used) if used else None


@cache
def in_median(accelerator_name: str) -> tuple[Offer, ...]:
    """The offers that `default_offer` is the median of, all of one kind; none where there is no such price."""
    name = _device(accelerator_name)[0]
    newest = _as_date(snapshot_date())
    kinds: tuple[Kind, ...] = ("on-demand", "marketplace")
    for kind in kinds:
        rows = [o for o in cloud_offers() if o.accelerator == name and o.kind == kind and _recent(o, newest)]
        if rows:
            return tuple(rows)
    return ()


def _recent(offer: Offer, newest: datetime.date | None) -> bool:
    asked = _as_date(offer.date)
    return asked is not None and newest is not None and (newest - asked).days <= _RECENT_DAYS


def _median_offer(name: str, kind: Kind, rows: Iterable[Offer]) -> Offer:
    by_provider: defaultdict[str, list[Offer]] = defaultdict(list)
    for offer in rows:
        by_provider[offer.provider].append(offer)
    price = median(median(o.amount_usd for o in group) for group in by_provider.values())
    used = [offer for group in by_provider.values() for offer in group]
    providers = sorted(by_provider)
    assumptions = sorted({offer.assumption for offer in used if offer.assumption})
    plural = "s" if len(providers) > 1 else ""
    return Offer(
        accelerator=name,
        kind=kind,
        usd_per_gpu_hour=price,
        usd=None,
        provider=", ".join(providers),
        region="",
        instance=f"{len(used)} offers",
        count=1,
        date=max(offer.date for offer in used),
        date_from=min(offer.date for offer in used),
        source=f"median of {len(used)} offer{'' if len(used) == 1 else 's'} by {len(providers)} provider{plural}",
        assumption=" ".join(assumptions),
    )


def cost_unknown_reason(accelerator_name: str) -> str:
    """Why ``default_offer`` is None, and what to do; empty when it is not."""
    if default_offer(accelerator_name) is not None:
        return ""
    name = _device(accelerator_name)[0]
    rows = [o for o in cloud_offers() if o.accelerator == name]
    if any(o.kind == "spot" for o in rows):
        found = "only spot prices are known"
    elif rows:
        found = "every listed price is undated or more than a year older than the snapshot"
    else:
        found = "nobody in the price snapshot rents it by the hour"
    return f"No hourly price for {name}: {found} (snapshot {snapshot_date()}). Set hardware.price.usd_per_gpu_hour."


@cache
def purchase_offer(accelerator_name: str) -> Offer | None:
    """What one such card costs to buy, or None: the newest street or list price of a card alone (the street price when
    both are as new), else the newest price of any kind, such as the share of a whole system."""
    name = _device(accelerator_name)[0]
    rows = [o for o in purchase_offers() if o.accelerator == name]
    alone = [o for o in rows if o.instance in _CARD_ALONE and o.kind in ("street", "msrp")]
    group = alone or rows
    return max(group, key=lambda o: (o.date, o.kind == "street", -o.amount_usd)) if group else None


def host_offer(gpus: int) -> Offer:
    """What a machine without its GPUs costs, of the smallest size that holds ``gpus``, else of the largest listed."""
    hosts = {offer.count: offer for offer in _others("base machine")}
    return hosts[min((size for size in hosts if size >= gpus), default=max(hosts))]


def electricity_offer() -> Offer:
    """USD of a kWh where a spec names none: the average that industry pays in the United States."""
    return _others("electricity, US industrial")[0]


@cache
def _others(begins: str) -> tuple[Offer, ...]:
    """Priced rows that belong to no accelerator, by how their ``system`` begins; ``usd`` is that of the whole row."""
    return tuple(
        Offer(
            accelerator="",
            kind="estimate",
            usd_per_gpu_hour=None,
            usd=float(row["price_usd"]),
            provider="",
            region="",
            instance=row["system"],
            count=int(row["n_accelerators"] or 1),
            date=row["as_of"],
            source=row["source"],
            notes=row["notes"],
        )
        for row in _rows("purchase.csv")
        if row["system"].startswith(begins) and row["price_usd"]
    )
