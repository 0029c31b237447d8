"""Refresh: newer hourly prices than the snapshot's, fetched or read once, and kept in the user's own data folder.

gpuhunt asks the providers; a CSV in the skypilot catalog's format is read from a file. Both become rows of it.
A provider that was asked again replaces its rows of the snapshot; the others keep theirs, with their own dates.
"""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from catalog import store
from catalog.errors import RigplanError, unreadable

Row = dict[str, str]
COLUMNS = (
    "provider", "region", "instance_type", "accelerator", "count", "vcpus", "host_memory_gib", "price_usd_per_hour",
    "spot_price_usd_per_hour", "interconnect_intra", "interconnect_inter_gbps", "as_of", "source", "notes",
)  # fmt: skip
SKYPILOT = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")


def refreshed_file() -> Path:
    """Where refreshed prices lie: $XDG_DATA_HOME/rigplan/cloud.csv, else ~/.local/share/rigplan/cloud.csv."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "rigplan" / "cloud.csv"


def refreshed_rows() -> list[Row]:
    """The rows that were refreshed; none before the first time."""
    try:
        with refreshed_file().open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))
    except OSError:
        return []


def over(snapshot: Iterable[Row]) -> list[Row]:
    """The snapshot with the rows of every provider that was asked again replaced."""
    newer = refreshed_rows()
    asked = {row["provider"] for row in newer}
    return [*newer, *(row for row in snapshot if row["provider"] not in asked)]


def keep(rows: Iterable[Row]) -> int:
    """Write rows beside those of other providers that were refreshed before; how many were kept.

    Raises RigplanError when there are none, so that a failed refresh leaves what was there.
    """
    new = list(rows)
    if not new:
        raise RigplanError("no GPU price was found; the snapshot stays as it is")
    asked = {row["provider"] for row in new}
    path = refreshed_file()
    together = [*new, *(row for row in refreshed_rows() if row["provider"] not in asked)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(together)
    return len(new)


def from_gpuhunt() -> Iterator[Row]:
    """On-demand and spot prices as gpuhunt finds them today. Raises RigplanError when it is not there or cannot ask."""
    try:
        import gpuhunt
    except ImportError:
        raise RigplanError("prices --refresh needs gpuhunt, which is not installed; pip install gpuhunt") from None
    _quiet(logging.getLogger("gpuhunt"))
    try:
        found = gpuhunt.query(min_gpu_count=1)
    except Exception as error:  # whatever its many providers raise
        raise RigplanError(f"gpuhunt could not ask for prices ({error}); the snapshot stays as it is") from None
    for item in found:
        if item.price and item.gpu_name and item.gpu_count and item.gpu_count >= 1:
            yield _row(
                provider=item.provider,
                region=item.location,
                instance=item.instance_name,
                gpu=_spelling(item.gpu_name, item.gpu_memory),
                count=int(item.gpu_count),
                usd="" if item.spot else str(item.price),
                spot_usd=str(item.price) if item.spot else "",
                source="gpuhunt",
            )


def _quiet(logger: logging.Logger) -> None:
    """A provider that cannot be asked is told in a line when all fail, not as a traceback each."""
    logger.addHandler(logging.NullHandler())
    logger.propagate = False


def from_skypilot(path: Path) -> Iterator[Row]:
    """Prices of a CSV in the skypilot catalog's format, read by its header; the provider is the folder's name.

    Raises RigplanError when the file cannot be read or lacks a column.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            lacks = [name for name in SKYPILOT if name not in (reader.fieldnames or ())]
            if lacks:
                raise RigplanError(f"{path}: has no column {', '.join(lacks)}; wanted a CSV of the skypilot catalog")
            yield from _skypilot_rows(reader, path.resolve().parent.name)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RigplanError(
            f"{path}: cannot be read ({unreadable(error)}); wanted a CSV of the skypilot catalog"
        ) from None


def _skypilot_rows(reader: Iterable[Mapping[str, str]], provider: str) -> Iterator[Row]:
    for line in reader:
        count = line["AcceleratorCount"] or "0"
        if line["AcceleratorName"] and float(count) >= 1 and (line["Price"] or line["SpotPrice"]):
            yield _row(
                provider=provider,
                region=line["Region"],
                instance=line["InstanceType"],
                gpu=line["AcceleratorName"],
                count=int(float(count)),
                usd=line["Price"],
                spot_usd=line["SpotPrice"],
                source="skypilot catalog format",
            )


def _spelling(name: str, memory_gb: Any) -> str:
    """A name with its memory where the catalog knows that, for an A100 alone is two cards."""
    sized = f"{name}-{float(memory_gb):.0f}GB" if memory_gb else name
    return sized if store.lookup(sized) is not None else name


def _row(
    *, provider: str, region: str, instance: str, gpu: str, count: int, usd: str, spot_usd: str, source: str
) -> Row:
    return dict.fromkeys(COLUMNS, "") | {
        "provider": provider,
        "region": region,
        "instance_type": instance,
        "accelerator": gpu,
        "count": str(count),
        "price_usd_per_hour": usd,
        "spot_price_usd_per_hour": spot_usd,
        "as_of": date.today().isoformat(),
        "source": source,
    }


__all__ = ["from_gpuhunt", "from_skypilot", "keep", "over", "refreshed_file", "refreshed_rows"]
