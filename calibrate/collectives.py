"""Collectives: every collective timed by size over the GPUs at hand, written as a link profile.

    torchrun --nproc-per-node 8 -m calibrate.collectives --link nvlink4-nvswitch --out link.json
    rigplan calibrate collectives --slurm --nodes 2 --partition gpu --link infiniband-ndr-8x400 --out link.json

Across nodes, give torchrun its usual --nnodes and --rdzv-endpoint, and name the network's link. Sizes are bytes of the
full
tensor: what an all-gather gives, what a reduce-scatter takes. Every group from two ranks to all of them is timed, by
powers
of two. In-switch reduction (NVLS) stays off unless NCCL_NVLS_ENABLE says otherwise: it needs multicast, which shared
machines may not give.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
import torch
import torch.distributed as dist

from calibrate import slurm
from calibrate.links import fit
from catalog import system
from catalog.errors import RigplanError
from catalog.link_curve import to_json

KIB, GIB = 1 << 10, 1 << 30
SMALLEST_BYTES, LARGEST_BYTES = 4 * KIB, 2 * GIB
# A point is timed for about so long, between these numbers of calls; the median of so many rounds counts.
POINT_SECONDS, FEWEST, MOST, ROUNDS = 0.2, 3, 100, 5
# Send, receive and gathered buffers live at once: no tensor may take more of the free memory than this share.
MEMORY_SHARE = 0.2

Body = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Bench:
    """The process's place among the ranks, and where its tensors lie."""

    device: torch.device
    rank: int
    world: int

    def clock(self) -> float:
        """Seconds, after everything issued so far has run."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def bodies(size_bytes: int, group: dist.ProcessGroup, bench: Bench) -> Iterator[tuple[str, int, Body]]:
    """(kind, bytes really moved, one call) of every collective on bf16 tensors of `size_bytes` in all."""
    ranks = dist.get_world_size(group)
    part = max(1, size_bytes // 2 // ranks)
    full = torch.zeros(part * ranks, dtype=torch.bfloat16, device=bench.device)
    mine = torch.zeros(part, dtype=torch.bfloat16, device=bench.device)
    moved = full.numel() * full.element_size()
    first, second = dist.get_global_rank(group, 0), dist.get_global_rank(group, 1)
    yield "all_reduce", moved, lambda: dist.all_reduce(full, group=group)
    yield "all_gather", moved, lambda: dist.all_gather_into_tensor(full, mine, group=group)
    yield "reduce_scatter", moved, lambda: dist.reduce_scatter_tensor(mine, full, group=group)
    yield "broadcast", moved, lambda: dist.broadcast(full, src=first, group=group)
    if bench.rank == first:
        yield "send_recv", moved, lambda: dist.send(full, dst=second, group=group)
    elif bench.rank == second:
        yield "send_recv", moved, lambda: dist.recv(full, src=first, group=group)
    else:
        yield "send_recv", moved, lambda: None


def seconds_of(body: Body, group: dist.ProcessGroup, bench: Bench, point_seconds: float = POINT_SECONDS) -> float:
    """Median seconds of a call on the slowest rank of the group."""
    body()
    dist.barrier(group)
    start = bench.clock()
    body()
    once = _slowest(bench.clock() - start, group, bench)
    calls = int(min(MOST, max(FEWEST, point_seconds / ROUNDS / max(once, 1e-7))))
    rounds = []
    for _ in range(ROUNDS):
        dist.barrier(group)
        start = bench.clock()
        for _ in range(calls):
            body()
        rounds.append(_slowest((bench.clock() - start) / calls, group, bench))
    return median(rounds)


def sizes(largest_bytes: int, smallest_bytes: int = SMALLEST_BYTES) -> list[int]:
    """Powers of two from the smallest message to the largest."""
    return [smallest_bytes << step for step in range(64) if smallest_bytes << step <= largest_bytes]


def groups(world: int) -> list[int]:
    """Sizes of the groups to time: powers of two and all ranks."""
    return sorted({1 << power for power in range(1, world.bit_length()) if 1 << power <= world} | {world})


def measure(
    bench: Bench,
    largest_bytes: int = LARGEST_BYTES,
    point_seconds: float = POINT_SECONDS,
    tell: Callable[[str], None] = lambda _: None,
) -> list[tuple[str, int, float, float]]:
    """(kind, ranks, bytes, seconds) of all points. Every rank of the world must call it."""
    rows: list[tuple[str, int, float, float]] = []
    for ranks in groups(bench.world):
        group = dist.new_group(list(range(ranks)))
        if bench.rank < ranks:
            for size in sizes(_affordable(bench, largest_bytes, group)):
                for kind, moved, body in bodies(size, group, bench):
                    rows.append((kind, ranks, float(moved), seconds_of(body, group, bench, point_seconds)))
                tell(f"{ranks} ranks, {size >> 10} KiB: all-reduce {rows[-5][3] * 1e6:.1f} us")
        dist.barrier()
    return rows


def run(link: str, out: Path, largest_bytes: int, point_seconds: float = POINT_SECONDS) -> None:
    """Join the process group that torchrun describes, time everything, and let rank 0 write the profile."""
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        bench = Bench(device, dist.get_rank(), dist.get_world_size())
        say = (lambda text: print(text, file=sys.stderr)) if bench.rank == 0 else (lambda _: None)
        rows = measure(bench, largest_bytes, point_seconds, say)
        if bench.rank == 0:
            profile = fit(rows, link, _source(bench))
            out.write_text(json.dumps(to_json(profile)), encoding="utf-8")
    finally:
        dist.destroy_process_group()


def _slowest(seconds: float, group: dist.ProcessGroup, bench: Bench) -> float:
    found = torch.tensor([seconds], dtype=torch.float64, device=bench.device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
    return float(found)


def _affordable(bench: Bench, largest_bytes: int, group: dist.ProcessGroup) -> int:
    """The largest size that every rank of the group has room for."""
    if bench.device.type != "cuda":
        return largest_bytes
    room = torch.tensor(
        [torch.cuda.mem_get_info(bench.device)[0] * MEMORY_SHARE], dtype=torch.float64, device=bench.device
    )
    dist.all_reduce(room, op=dist.ReduceOp.MIN, group=group)
    return min(largest_bytes, int(room))


def _source(bench: Bench) -> str:
    if bench.device.type != "cuda":
        return f"calibrate.collectives, gloo over {bench.world} processes, torch {torch.__version__}"
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    switch = "on" if os.environ["NCCL_NVLS_ENABLE"] != "0" else "off"
    gpu = torch.cuda.get_device_name()
    return f"calibrate.collectives, {gpu} x {bench.world}, torch {torch.__version__}, NCCL {nccl}, NVLS {switch}"


@click.command(help=__doc__)
@click.option(
    "--link", required=True, type=click.Choice(system.link_names()), help="the catalog's name of what joins the GPUs"
)
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--largest", "largest_bytes", default=LARGEST_BYTES, show_default=True, help="largest message in bytes")
@click.option("--point-seconds", default=POINT_SECONDS, show_default=True, help="seconds a point")
@click.option("--nodes", default=1, show_default=True, help="nodes of the SLURM job")
@click.option("--gpus-per-node", default=8, show_default=True, help="GPUs of each of them")
@click.option("--json", "as_json", is_flag=True, help="Print the curves, too, as JSON.")
@slurm.options
def main(
    link: str, out: Path, largest_bytes: int, point_seconds: float, nodes: int, gpus_per_node: int, as_json: bool,
    as_job: bool, partition: str | None, account: str | None, slurm_time: str,
) -> None:  # fmt: skip
    try:
        if as_job:
            where = slurm.place(partition, account, slurm_time, nodes=nodes, gpus_per_node=gpus_per_node)
            words = ["--link", link, "--out", str(out.resolve()), "--largest", str(largest_bytes)]
            words = ["collectives", *words, "--point-seconds", f"{point_seconds:g}"]
            slurm.run(words, where, lambda text: click.echo(text, err=True))
        else:
            if "RANK" not in os.environ:
                raise RigplanError(
                    "every GPU needs a process: torchrun --nproc-per-node 8 -m calibrate.collectives ..., or --slurm"
                )
            run(link, out, largest_bytes, point_seconds)
        if as_json and os.environ.get("RANK", "0") == "0":
            click.echo(out.read_text(encoding="utf-8"), nl=False)
    except RigplanError as error:
        raise click.UsageError(str(error)) from None


if __name__ == "__main__":
    main()
