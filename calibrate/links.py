"""Links: published collective timings made into link profiles, and how far those are off where nothing was shown to
them.

python -m calibrate.links collectives.csv --write catalog/data/links
python -m calibrate.links collectives.csv            # held-out errors only
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
import numpy as np

from catalog import system
from catalog.link_curve import LinkCurves, Points, monotone, to_json

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
Row = tuple[str, int, float, float]  # kind, ranks, bytes, seconds


@dataclass(frozen=True, slots=True)
class Recipe:
    """Which rows of the table make which profile: `where` is what source_where must contain."""

    profile: str
    source: str
    gpu: str
    where: str = ""
    fabric: str = ""
    one_gpu_a_node: bool = False
    largest: int = 1 << 30
    """Groups beyond this are left out."""

    @property
    def link(self) -> str:
        return self.profile.partition(".")[0]


# The newest NCCL of a source. In-switch reduction is on where NCCL has it, as it is by default.
RECIPES = (
    Recipe("nvlink2-mesh", "vTrain", "V100"),
    Recipe("nvlink3-nvswitch", "aiconfigurator", "A100-SXM4-80GB"),
    Recipe("nvlink4-nvswitch", "aiconfigurator", "H100-SXM5-80GB", "2.29.2"),
    Recipe("nvlink4-nvswitch.h200-sxm", "aiconfigurator", "H200-SXM", "2.29.2"),
    Recipe("nvlink5-nvswitch", "aiconfigurator", "B200", "2.29.2"),
    Recipe("nvlink5-nvswitch.b300-sxm", "aiconfigurator", "B300", "2.29.2"),
    Recipe("nvlink5-rack", "aiconfigurator", "GB200", "2.29.2"),
    Recipe("nvlink5-rack.gb300", "aiconfigurator", "GB300", "2.29.2"),
    Recipe(
        "pcie4-host", "aiconfigurator", "L40S", largest=2
    ),  # 4 and 8 GPUs of that machine reach 5 and 1.5 GB/s: its own fault
    Recipe("pcie5-host", "aiconfigurator", "RTX-PRO-6000-Blackwell-Server"),
    Recipe("pcie5-host.arc-pro-b60", "aiconfigurator", "Arc-Pro-B60"),
    Recipe("pcie3-host", "DeepBench", "GTX1080Ti"),
    Recipe("infiniband-ndr-8x400", "xxrjun/nccl-tests-cluster", "H100-SXM5-80GB", one_gpu_a_node=True),
)
# Independent measurements of the same links: (profile, source, gpu).
WITNESSES = (
    ("nvlink3-nvswitch", "Azure AI-benchmarking-guide", "A100-SXM4-80GB"),
    ("nvlink3-nvswitch", "stas00/ml-engineering", "A100-SXM4-80GB"),
    ("nvlink3-nvswitch", "vidur", "A100-SXM4-80GB"),
    ("nvlink3-nvswitch", "vTrain", "A100"),
    ("nvlink4-nvswitch", "openxla", "H100-SXM5-80GB"),
    ("nvlink4-nvswitch", "xxrjun/nccl-tests-cluster", "H100-SXM5-80GB"),
    ("nvlink4-nvswitch", "vidur", "H100-SXM5-80GB"),
    ("nvlink4-nvswitch", "Azure AI-benchmarking-guide", "H100-SXM5-80GB"),
    ("nvlink4-nvswitch.h200-sxm", "Azure AI-benchmarking-guide", "H200-SXM"),
    ("nvlink4-nvswitch.h200-sxm", "stas00/ml-engineering", "H200-SXM"),
    ("nvlink5-nvswitch", "openxla", "B200"),
    ("nvlink5-nvswitch", "stas00/ml-engineering", "B200"),
)
LARGE_BYTES, SMALL_BYTES = 1 << 24, 1 << 16
RENAMED = {"sendrecv": "send_recv"}


def rows_of(
    table: Iterable[dict[str, str]], source: str, gpu: str, where: str = "", *, one_gpu_a_node: bool = False
) -> list[Row]:
    """Rows of one source and GPU: inside a node, or with one GPU in each of several nodes."""
    kept: list[Row] = []
    for row in table:
        kind = RENAMED.get(row["op"], row["op"])
        if row["source"] != source or row["gpu"] != gpu or where not in row["source_where"] or kind not in KINDS:
            continue
        nodes = int(row["n_nodes"] or 1)
        ranks = int(row["n_gpus"] or 0)
        across = nodes > 1 or "nodes" in row["fabric"] or "across" in row["fabric"]
        wanted = (across and nodes == ranks) if one_gpu_a_node else not across
        if wanted and ranks > 1 and row["seconds"] and float(row["bytes"]) > 0:
            kept.append((kind, ranks, float(row["bytes"]), float(row["seconds"])))
    return kept


def fit(rows: Sequence[Row], link: str, source: str) -> LinkCurves:
    """Monotone curves through the rows; below the smallest size, down to the link's own latency."""
    known = system.link(link)
    grouped: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for kind, ranks, size, seconds in rows:
        grouped.setdefault(kind, {}).setdefault(ranks, []).append((size, seconds))
    curves = {
        kind: {ranks: _points(found, known.latency_s + (ranks - 2) * known.hop_s) for ranks, found in by_ranks.items()}
        for kind, by_ranks in grouped.items()
    }
    return LinkCurves(link, known.bytes_per_s, curves, source)


def from_torch(data: dict[str, object]) -> list[Row]:
    """Rows of a two-rank table in torch's terms: the size is one rank's part of a gather or scatter."""
    rows: list[Row] = []
    for row in data["rows"]:  # type: ignore[attr-defined]
        parts = 1 if row["op"] == "all_reduce" else 2
        rows.append((row["op"], 2, float(row["mib"]) * parts * (1 << 20), float(row["s"])))
    return rows


def errors(curves: LinkCurves, rows: Iterable[Row]) -> list[tuple[float, float]]:
    """(bytes, relative error) of rows that the curves have something to say about."""
    found = []
    for kind, ranks, size, seconds in rows:
        predicted = curves.seconds(kind, size, ranks)
        if predicted is not None:
            found.append((size, predicted / seconds - 1))
    return found


def _points(found: list[tuple[float, float]], latency_s: float) -> Points:
    """A curve; where its smallest message is a large one, a straight line leads from there to the latency."""
    points = monotone(found)
    size, seconds = points[0]
    if size > SMALL_BYTES and seconds > latency_s:
        halvings = range(1, int(np.log2(size / SMALL_BYTES)) + 1)
        below = [(size / 2**count, latency_s + (seconds - latency_s) / 2**count) for count in reversed(halvings)]
        points = [*below, *points]
    sizes, times = zip(*points, strict=True)
    return np.array(sizes), np.array(times)


def _held_out_sizes(rows: list[Row], recipe: Recipe) -> list[tuple[float, float]]:
    """Fit on every other size of each curve, judge on the rest."""
    sizes: dict[tuple[str, int], set[float]] = {}
    for kind, ranks, size, _ in rows:
        sizes.setdefault((kind, ranks), set()).add(size)
    hidden = {(*group, size) for group, found in sizes.items() for size in sorted(found)[1:-1:2]}
    curves = fit([row for row in rows if row[:3] not in hidden], recipe.link, "")
    return errors(curves, [row for row in rows if row[:3] in hidden])


def _held_out_ranks(rows: list[Row], recipe: Recipe) -> list[tuple[float, float]]:
    """Fit without the middle group size, judge on it."""
    groups = sorted({ranks for _, ranks, _, _ in rows})
    if len(groups) < 3:
        return []
    hidden = groups[len(groups) // 2]
    curves = fit([row for row in rows if row[1] != hidden], recipe.link, "")
    return errors(curves, [row for row in rows if row[1] == hidden])


def _line(name: str, found: list[tuple[float, float]]) -> str:
    if not found:
        return f"{name:<72} no rows"
    small = [abs(error) for size, error in found if size < LARGE_BYTES]
    large = [abs(error) for size, error in found if size >= LARGE_BYTES]
    bias = median(error for _, error in found)
    parts = [
        f"{label} {median(part):6.1%} ({len(part)})"
        for label, part in (("<16 MiB", small), (">=16 MiB", large))
        if part
    ]
    return f"{name:<72} median |error| {'  '.join(parts)}  bias {bias:+.1%}"


@click.command(help=__doc__)
@click.argument("table", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--own", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="two-GPU H200 table in torch's terms"
)
@click.option("--write", type=click.Path(file_okay=False, path_type=Path), help="folder for the link profiles")
def main(table: Path, own: Path | None, write: Path | None) -> None:
    with table.open(encoding="utf-8", newline="") as file:
        everything = list(csv.DictReader(file))
    profiles: dict[str, LinkCurves] = {}
    for recipe in RECIPES:
        rows = rows_of(everything, recipe.source, recipe.gpu, recipe.where, one_gpu_a_node=recipe.one_gpu_a_node)
        rows = [row for row in rows if row[1] <= recipe.largest]
        version = f" {recipe.where}" if recipe.where else ""
        source = f"{recipe.source}{version}, {recipe.gpu}"
        if own is not None and recipe.profile == "nvlink4-nvswitch.h200-sxm":
            measured = from_torch(json.loads(own.read_text(encoding="utf-8")))
            click.echo(
                _line(f"{recipe.profile}: two own GPUs, torch", errors(fit(rows, recipe.link, source), measured))
            )
            rows = [
                row
                for row in rows
                if row[1] != 2 or row[2] < 1 << 20 or row[0] not in {own_row[0] for own_row in measured}
            ]
            rows += measured
            source += "; two GPUs from 1 MiB: NCCL through torch 2.11 on 2 H200 SXM (NV18), SHARP off"
        profiles[recipe.profile] = fit(rows, recipe.link, source)
        click.echo(_line(f"{recipe.profile}: every other size held out", _held_out_sizes(rows, recipe)))
        click.echo(_line(f"{recipe.profile}: a group size held out", _held_out_ranks(rows, recipe)))
    for profile, source, gpu in WITNESSES:
        rows = rows_of(everything, source, gpu)
        click.echo(_line(f"{profile}: against {source}", errors(profiles[profile], rows)))
    if write is not None:
        write.mkdir(parents=True, exist_ok=True)
        for name, curves in profiles.items():
            (write / f"{name}.json").write_text(_dump(curves), encoding="utf-8")


def _dump(curves: LinkCurves) -> str:
    """One line a curve, so that a difference can be read."""
    data = to_json(curves)
    table = data.pop("curves")
    lines = [
        f'  "{kind}": {{\n'
        + ",\n".join(f'   "{ranks}": {json.dumps(points)}' for ranks, points in by.items())
        + "\n  }"
        for kind, by in table.items()
    ]
    head = ",\n".join(f' "{key}": {json.dumps(value)}' for key, value in data.items())
    return "{\n" + head + ',\n "curves": {\n' + ",\n".join(lines) + "\n }\n}\n"


if __name__ == "__main__":
    main()
