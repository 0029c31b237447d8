"""One rank of several on one GPU: what torch's wrappers hold and how long they take, without the links.

`python -m calibrate.one_rank RUNS.jsonl -o NEW.jsonl` runs the specs of these records again, each in a process of its
own. FSDP2 is rank 0 of torch's fake process group, which sends nothing; DDP is alone in a group. What a rank allocates
is what it allocates among real others: NCCL's own buffers are outside of torch's allocator.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from calibrate import loop, steps
from catalog.errors import RigplanError
from planner.collectives import Mesh
from planner.spec import Spec
from planner.strategy import Strategy
from planner.wrappers import fsdp

STEPS = 9
LIFE_STEPS = 3  # after which the allocator holds what it will hold
FULLY_SHARDED = ("fsdp", "fsdp-grad-op")


def run(spec: Mapping[str, Any], device: str = "cuda") -> dict[str, Any]:
    """A record of `spec`, whose `hardware.count` is the number of ranks: peaks in bytes, the fastest step in seconds.

    Raises RigplanError for what is neither DDP nor FSDP2, and without the device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise RigplanError("found no GPU that torch can see; wanted one, or --device cpu, which measures no memory")
    asked = Spec.load(spec)
    strategy, hardware = loop.only_choice(asked)
    with _group(strategy, hardware.count, device) as wrap:
        training = loop.prepared(asked, strategy, device, wrap)
        if strategy.sharding in FULLY_SHARDED:
            training.strategy = replace(strategy, precision="fp32")  # FSDP's own policy casts, not autocast
        return {"spec": dict(spec), **_stepped(training), "torch": torch.__version__}


@contextmanager
def _group(strategy: Strategy, ranks: int, device: str) -> Iterator[loop.Wrap]:
    """What wraps a module as on one rank of several; the process group that it needs is there inside."""
    if strategy.sharding in FULLY_SHARDED:
        with fsdp.process_group(Mesh(strategy.sharding, shard=ranks), device) as mesh:
            yield partial(_sharded, mesh=mesh, strategy=strategy)
        return
    if strategy.sharding != "none" or strategy.tensor_parallel > 1 or strategy.offload != "none":
        found = f"sharding {strategy.sharding}, tensor_parallel {strategy.tensor_parallel}, offload {strategy.offload}"
        raise RigplanError(f"found {found}; wanted sharding none (DDP), {' or '.join(FULLY_SHARDED)} alone")
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield DistributedDataParallel
    finally:
        dist.destroy_process_group()


def _sharded(module: torch.nn.Module, mesh: DeviceMesh, strategy: Strategy) -> torch.nn.Module:
    fsdp.shard(module, mesh, strategy.sharding, strategy.precision)
    return module


def _stepped(training: loop.Training) -> dict[str, Any]:
    """Peaks of the first steps, where the device has an allocator, and the seconds of the fastest of all."""
    on_gpu = training.device == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds, peaks = [], {}
    for number in range(STEPS):
        began = time.perf_counter()
        training.step()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        if number == LIFE_STEPS - 1 and on_gpu:
            peaks = {
                "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
                "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            }
    return {**peaks, "least_step_seconds": min(seconds)}


@click.command()
@click.argument("runs", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="JSON lines.")
@click.option("--device", default="cuda", type=click.Choice(["cuda", "cpu"]))
def main(runs: Path, output: Path, device: str) -> None:
    """Run the specs of RUNS as one rank of several each, and write one JSON record a line."""
    try:
        for asked in steps.read(runs):
            with multiprocessing.get_context("spawn").Pool(1) as alone:
                record = {"name": asked.get("name", ""), **alone.apply(run, (asked["spec"], device))}
            with output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            click.echo(f"{record['name']}: {1000 * record['least_step_seconds']:.1f} ms a step")
    except RigplanError as error:
        raise click.UsageError(str(error)) from None


if __name__ == "__main__":
    main()
