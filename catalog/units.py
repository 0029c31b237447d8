"""Quantities as people write them, and back: the only unit conversions in the project.

Inside, everything is bytes, seconds, FLOP and USD. ``KiB MiB GiB TiB`` are powers of 1024; ``kB MB GB TB`` and the
prefixes of rates and counts are powers of 1000.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from catalog.errors import RigplanError, did_you_mean

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0
WEEK_S, YEAR_S = 7 * DAY_S, 365.25 * DAY_S

# Lower-cased unit -> factor. "K", "G" and "T" alone read as binary, as in a scheduler's `--mem 64G`.
_BYTES: dict[str, float] = {
    "b": 1, "byte": 1, "bytes": 1,
    "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
    "k": KIB, "m": MIB, "g": GIB, "t": TIB,
}  # fmt: skip
_COUNTS: dict[str, float] = {
    "": 1, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12,
    "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12,
}  # fmt: skip
_SECONDS: dict[str, float] = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3,
    "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1,
    "m": MINUTE_S, "min": MINUTE_S, "mins": MINUTE_S, "minute": MINUTE_S, "minutes": MINUTE_S,
    "h": HOUR_S, "hr": HOUR_S, "hrs": HOUR_S, "hour": HOUR_S, "hours": HOUR_S,
    "d": DAY_S, "day": DAY_S, "days": DAY_S, "week": WEEK_S, "weeks": WEEK_S, "year": YEAR_S, "years": YEAR_S,
}  # fmt: skip
_FLOP_RATES: dict[str, float] = {
    f"{prefix}{unit}": factor
    for prefix, factor in (("g", 1e9), ("t", 1e12), ("p", 1e15))
    for unit in ("flop/s", "flops", "flops/s", "op/s", "ops", "ops/s")
}
_FREQUENCIES: dict[str, float] = {"hz": 1, "khz": 1e3, "mhz": 1e6, "ghz": 1e9}

_QUANTITY = re.compile(r"^\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([^\d\s].*?)?\s*$", re.IGNORECASE)
_TOTAL_KINDS: dict[str, Literal["tokens", "steps", "samples", "epochs"]] = {
    "token": "tokens", "tokens": "tokens", "step": "steps", "steps": "steps", "iterations": "steps",
    "sample": "samples", "samples": "samples", "images": "samples", "sequences": "samples", "examples": "samples",
    "epoch": "epochs", "epochs": "epochs",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DataTotal:
    """How much data a run sees. ``amount`` counts ``kind``; ``epoch_samples`` is set when the kind is epochs."""

    kind: Literal["tokens", "steps", "samples", "epochs"]
    amount: float
    epoch_samples: float | None = None

    def __str__(self) -> str:
        size = f" of {count(self.epoch_samples)} samples" if self.epoch_samples is not None else ""
        return f"{count(self.amount)} {self.kind}{size}"


def _split(text: str | float | int, wanted: str) -> tuple[float, str]:
    """The number and the unit of a quantity; raises RigplanError naming what was wanted."""
    if isinstance(text, bool):
        raise RigplanError(f"{text!r} is not {wanted}.")
    if isinstance(text, int | float):
        value, unit = float(text), ""
    else:
        match = _QUANTITY.match(text)
        if match is None:
            raise RigplanError(f"{text!r} is not {wanted}.")
        value, unit = float(match[1].replace(",", "").replace("_", "")), (match[2] or "").strip()
    if not math.isfinite(value):
        raise RigplanError(f"{text!r} is not finite; wanted {wanted}.")
    if value < 0:
        raise RigplanError(f"{text!r} is negative; wanted {wanted}.")
    return value, unit


def _scaled(text: str | float | int, factors: dict[str, float], wanted: str) -> float:
    value, unit = _split(text, wanted)
    key = unit.lower()
    if key == "" and "" not in factors and not isinstance(text, str):
        return value  # a bare number is already in the base unit
    if key not in factors:
        found = f"unit {unit!r}" if unit else "no unit"
        raise RigplanError(f"{text!r} has {found}; wanted {wanted}.")
    return value * factors[key]


def parse_bytes(text: str | float | int) -> int:
    """Bytes of "80 GiB", "39GiB", "64 MiB", "512 GB" or a plain number of bytes."""
    return round(_scaled(text, _BYTES, 'a size such as "80 GiB"'))


def parse_bandwidth(text: str | float | int) -> float:
    """Bytes per second of "3.35 TB/s", "450 GB/s", "400 Gb/s" (bits, by the lower-case b) or a plain number."""
    wanted = 'a bandwidth such as "3.35 TB/s" (bytes) or "400 Gb/s" (bits)'
    value, unit = _split(text, wanted)
    if not unit and not isinstance(text, str):
        return value
    size = re.sub(r"(/s|ps)$", "", unit)
    if size == unit:
        raise RigplanError(f"{text!r} is not {wanted}.")
    bits = re.fullmatch(r"[kKMGT]?(?:bit|b)", size) is not None
    key = size.lower().replace("bit", "b")
    if key not in _BYTES:
        raise RigplanError(f"{text!r} has unit {unit!r}; wanted {wanted}.")
    return value * _BYTES[key] / (8 if bits else 1)


def parse_count(text: str | float | int) -> float:
    """A pure number: "300B", "1.28M", "143,000", "2 billion"."""
    return _scaled(text, _COUNTS, 'a count such as "300B" or "1.28M"')


def parse_seconds(text: str | float | int) -> float:
    """Seconds of "90 days", "12 h", "35 us" or a plain number of seconds."""
    return _scaled(text, _SECONDS, 'a duration such as "12 h" or "90 days"')


def parse_flop_rate(text: str | float | int) -> float:
    """FLOP (or integer operations) per second of "989 TFLOP/s", "1979 TFLOPS" or a plain number."""
    return _scaled(text, _FLOP_RATES, 'a rate such as "989 TFLOP/s"')


def parse_frequency(text: str | float | int) -> float:
    """Hertz of "1830 MHz" or a plain number."""
    return _scaled(text, _FREQUENCIES, 'a frequency such as "1830 MHz"')


def parse_usd(text: str | float | int) -> float:
    """US dollars of "$20,000", "20k USD", "20000" or a plain number."""
    if isinstance(text, str):
        bare = re.sub(r"(?i)usd|\$", "", text).strip()
        try:
            return parse_count(bare)
        except RigplanError:
            raise RigplanError(f'{text!r} is not an amount of money; wanted one such as "20000 USD".') from None
    return parse_count(text)


def parse_total(text: str | float | int) -> DataTotal:
    """How much data: "300B tokens", "143000 steps", "1.2M samples", "90 epochs of 1.28M samples"."""
    wanted = '"300B tokens", "143000 steps", "1.2M samples" or "90 epochs of 1.28M samples"'
    words = str(text).split()
    kind = _TOTAL_KINDS.get(words[1].lower()) if len(words) >= 2 else None
    if kind is None and len(words) >= 3:  # "300 billion tokens"
        words = [f"{words[0]}{words[1]}", *words[2:]]
        kind = _TOTAL_KINDS.get(words[1].lower())
    if kind is None:
        unit = words[1] if len(words) >= 2 else ""
        hint = did_you_mean(unit, _TOTAL_KINDS)
        raise RigplanError(f"{str(text)!r} is not an amount of data; wanted {wanted}.{hint}")
    amount = parse_count(words[0])
    if amount <= 0:
        raise RigplanError(f"{str(text)!r} is no data at all; wanted more than zero {kind}.")
    rest = words[2:]
    if kind != "epochs":
        if rest:
            raise RigplanError(f"{str(text)!r} has {' '.join(rest)!r} after the unit; wanted {wanted}.")
        return DataTotal(kind, amount)
    size = rest[1:] if rest[:1] == ["of"] else []
    if not size or (len(size) > 1 and _TOTAL_KINDS.get(size[-1].lower()) != "samples"):
        raise RigplanError(f'{str(text)!r} does not say how long an epoch is; wanted "90 epochs of 1.28M samples".')
    number = "".join(size[:-1]) if len(size) > 1 else size[0]
    epoch_samples = parse_count(number)
    if epoch_samples <= 0:
        raise RigplanError(f"{str(text)!r} has an empty epoch; wanted more than zero samples.")
    return DataTotal("epochs", amount, epoch_samples)


def _prefixed(value: float, steps: tuple[tuple[float, str], ...], digits: int = 3) -> str:
    for factor, unit in steps:
        if abs(value) >= factor:
            return f"{_significant(value / factor, digits)}{unit}"
    return f"{_significant(value / steps[-1][0], digits)}{steps[-1][1]}"


def _significant(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def gib(size_bytes: float) -> str:
    """``79.10 GiB``; small sizes as MiB."""
    return f"{size_bytes / GIB:,.2f} GiB" if abs(size_bytes) >= GIB / 10 else f"{size_bytes / MIB:,.1f} MiB"


def seconds(duration_s: float) -> str:
    """``12.3 us``, ``418 ms``, ``3.21 s``, ``4.5 h`` or ``38 days``, whichever reads best."""
    steps = ((DAY_S, " days"), (HOUR_S, " h"), (2 * MINUTE_S, " min"), (1.0, " s"), (1e-3, " ms"), (1e-6, " us"))
    if 2 * MINUTE_S <= duration_s < HOUR_S:
        return f"{_significant(duration_s / MINUTE_S, 3)} min"
    return _prefixed(duration_s, steps)


def day_unit(duration_days: float) -> tuple[float, str]:
    """The unit in which so many days read best, and how many of it are a day: ``days`` from two days on, ``h`` from an
    hour on, ``min`` from two minutes on, else ``s``."""
    lengths = ((2 * DAY_S, DAY_S, "days"), (HOUR_S, HOUR_S, "h"), (2 * MINUTE_S, MINUTE_S, "min"))
    least = next(((unit_s, name) for from_s, unit_s, name in lengths if duration_days * DAY_S >= from_s), (1.0, "s"))
    return DAY_S / least[0], least[1]


def days(duration_days: float) -> str:
    """``38.2 days``, ``12 h``, ``45 min`` or ``30 s``, whichever reads best."""
    a_day, name = day_unit(duration_days)
    return f"{_significant(duration_days * a_day, 3)} {name}"


def usd(amount_usd: float) -> str:
    """``12,345 USD``; cents below 100."""
    return f"{amount_usd:,.2f} USD" if abs(amount_usd) < 100 else f"{amount_usd:,.0f} USD"


def flop_rate(flop_per_s: float) -> str:
    """``989 TFLOP/s``."""
    return _prefixed(flop_per_s, ((1e12, " TFLOP/s"), (1e9, " GFLOP/s")), digits=4)


def bandwidth(bytes_per_s: float) -> str:
    """``3.35 TB/s``."""
    return _prefixed(bytes_per_s, ((1e12, " TB/s"), (1e9, " GB/s"), (1e6, " MB/s")))


def count(number: float) -> str:
    """``300B``, ``1.28M``, ``143,000``: exact below a million."""
    if abs(number) < 1e6:
        return f"{number:,.10g}"
    return _prefixed(number, ((1e12, "T"), (1e9, "B"), (1e6, "M")), digits=4)
