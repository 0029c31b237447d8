"""Link curves: measured seconds of collectives by kind, message size and group size, and what lies between the
points."""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from catalog.errors import RigplanError
from catalog.store import DATA

Points = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]

# What share of the full tensor crosses each GPU's link in a ring over n ranks, over (n - 1) / n.
SHARES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


def ring_share(kind: str, ranks: int) -> float:
    """Bytes through each GPU's link over the bytes of the full tensor; a point-to-point copy moves all of it, and so
    does a broadcast, which goes from rank to rank (nccl-tests, PERFORMANCE.md: its bus bandwidth is its own)."""
    return 1.0 if kind in ("send_recv", "broadcast") else SHARES[kind] * (ranks - 1) / ranks


@dataclass(frozen=True, slots=True)
class LinkCurves:
    """Measured collectives on one link. Sizes are bytes of the full tensor, times seconds, by kind and group size."""

    link: str
    bytes_per_s: float
    """Nominal rate per GPU and direction of the hardware that was measured."""
    curves: dict[str, dict[int, Points]]
    source: str

    def seconds(self, kind: str, size_bytes: float, ranks: int, bytes_per_s: float | None = None) -> float | None:
        """Seconds of one collective, never falling with its size; None where nothing like it was measured.

        A link of another rate (`bytes_per_s`) keeps the latency and scales the rest.
        """
        found = self._seconds(kind, size_bytes, ranks)
        if found is None or bytes_per_s is None:
            return found
        least = self._seconds(kind, 0.0, ranks) or 0.0
        return least + (found - least) * self.bytes_per_s / bytes_per_s

    def largest(self, kind: str) -> int:
        """The largest group that was measured; 0 when none was."""
        return max(self.curves.get(kind, {}), default=0)

    def _seconds(self, kind: str, size_bytes: float, ranks: int) -> float | None:
        by_ranks = self.curves.get(kind)
        if by_ranks is None:  # an all-reduce is a reduce-scatter and an all-gather
            whole = self._seconds("all_reduce", size_bytes, ranks) if kind != "all_reduce" else None
            if whole is None:
                return None
            least = self._seconds("all_reduce", 0.0, ranks) or 0.0
            return least + (whole - least) * ring_share(kind, ranks) / ring_share("all_reduce", ranks)
        known = sorted(by_ranks)
        if known == [2] and ranks > 2:
            return None  # two GPUs do not show what is shared by more
        if ranks in by_ranks:
            return between(by_ranks[ranks], size_bytes)
        if ranks > known[-1] or ranks < known[0]:
            return self._beyond(kind, size_bytes, ranks, known)
        at = bisect_left(known, ranks)
        low, high = known[at - 1], known[at]
        shared = [between(by_ranks[near], size_bytes) / ring_share(kind, near) for near in (low, high)]
        return ring_share(kind, ranks) * (shared[0] + (shared[1] - shared[0]) * (ranks - low) / (high - low))

    def _beyond(self, kind: str, size_bytes: float, ranks: int, known: list[int]) -> float:
        """A larger (or smaller) group than any measured: the ring's share, and the latency that each rank has added."""
        by_ranks = self.curves[kind]
        nearest = known[-1] if ranks > known[-1] else known[0]
        least = between(by_ranks[nearest], 0.0)
        hop = 0.0
        if len(known) > 1:
            hop = max(
                0.0, (between(by_ranks[known[-1]], 0.0) - between(by_ranks[known[0]], 0.0)) / (known[-1] - known[0])
            )
        moving = (between(by_ranks[nearest], size_bytes) - least) * ring_share(kind, ranks) / ring_share(kind, nearest)
        return max(0.0, least + hop * (ranks - nearest)) + moving


def between(points: Points, size_bytes: float) -> float:
    """Seconds at a size: log-log between points, level below the first; above the last, at the rate of the last
    eightfold."""
    sizes, seconds = points
    if size_bytes <= sizes[0]:
        return float(seconds[0])
    if size_bytes >= sizes[-1]:
        before = int(np.searchsorted(sizes, sizes[-1] / 8))
        rate = (seconds[-1] - seconds[before]) / (sizes[-1] - sizes[before]) if before < len(sizes) - 1 else np.inf
        return float(seconds[-1] + (size_bytes - sizes[-1]) * min(rate, seconds[-1] / sizes[-1]))
    return float(np.exp(np.interp(np.log(size_bytes), np.log(sizes), np.log(seconds))))


def monotone(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points by size, repeated sizes at their median, with falling times pooled (in logarithms)."""
    by_size: dict[float, list[float]] = {}
    for size, seconds in points:
        by_size.setdefault(size, []).append(seconds)
    pools: list[list[float]] = []  # mean log seconds, weight
    for size in sorted(by_size):
        pools.append([float(np.log(np.median(by_size[size]))), 1.0])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            mean, weight = pools.pop()
            before, earlier = pools.pop()
            pools.append([(mean * weight + before * earlier) / (weight + earlier), weight + earlier])
    levels = [float(np.exp(mean)) for mean, weight in pools for _ in range(int(weight))]
    return list(zip(sorted(by_size), levels, strict=True))


def from_json(data: dict[str, Any]) -> LinkCurves:
    """A link profile as `calibrate` writes it. Raises KeyError or ValueError when it is none."""
    curves = {
        kind: {int(ranks): _arrays(points) for ranks, points in by_ranks.items()}
        for kind, by_ranks in data["curves"].items()
    }
    return LinkCurves(data["link"], float(data["bytes_per_s"]), curves, data["source"])


def to_json(curves: LinkCurves) -> dict[str, Any]:
    """The profile as plain lists: bytes and seconds, seconds in four digits."""
    table = {
        kind: {
            str(ranks): [[int(size), float(f"{second:.4g}")] for size, second in zip(*points, strict=True)]
            for ranks, points in sorted(by_ranks.items())
        }
        for kind, by_ranks in curves.curves.items()
    }
    return {"link": curves.link, "bytes_per_s": curves.bytes_per_s, "source": curves.source, "curves": table}


def read(path: Path) -> LinkCurves:
    """The link profile in a file. Raises RigplanError when there is none."""
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise RigplanError(
            f"{path} is no link profile ({type(error).__name__}); write one with rigplan calibrate collectives"
        ) from None


@cache
def find(link: str, accelerator: str = "") -> LinkCurves | None:
    """The shipped curves of a link, those measured on this accelerator first; None when there are none."""
    for name in (f"{link}.{accelerator}.json", f"{link}.json"):
        path = DATA / "links" / name
        if path.is_file():
            return read(path)
    return None


def _arrays(points: list[list[float]]) -> Points:
    sizes, seconds = zip(*points, strict=True)
    return np.array(sizes, dtype=np.float64), np.array(seconds, dtype=np.float64)
