"""One rank of several on one GPU: what torch's wrappers hold and how long they take, without the links.

`python -m calibrate.one_rank RUNS.jsonl -o NEW.jsonl` runs the specs of these records again, each in a process of its
own. FSDP2 is rank 0 of torch's fake process group, which sends nothing; DDP is alone in a group. What a rank allocates
is what it allocates among real others: NCCL's own buffers are outside of torch's allocator.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from calibrate.loop import Training, set_precision
from catalog.errors import RigplanError
from planner import models
from planner.optimizers import build_optimizer
from planner.spec import Spec
from planner.strategy import Strategy, choices
from planner.wrappers import checkpointing, fsdp

STEPS = 9
LIFE_STEPS = 3  # after which the allocator holds what it will hold
FULLY_SHARDED = ("fsdp", "fsdp-grad-op")


def run(spec: Mapping[str, Any], device: str = "cuda") -> dict[str, Any]:
    """A record of `spec`, whose `hardware.count` is the number of ranks: peaks in bytes, the fastest step in seconds.

    Raises RigplanError for what is neither DDP nor FSDP2.
    """
    asked = Spec.load(spec)
    strategy, choice = next(iter(choices(asked)))
    if strategy.sharding not in ("none", *FULLY_SHARDED):
        raise RigplanError(
            f"sharding {strategy.sharding}: one rank is run of none (DDP), {' and '.join(FULLY_SHARDED)}"
        )
    training = _prepared(asked, strategy, choice.count, device)
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds, peaks = [], {}
    for number in range(STEPS):
        _wait(device)
        began = time.perf_counter()
        training.step()
        _wait(device)
        seconds.append(time.perf_counter() - began)
        if number == LIFE_STEPS - 1 and device == "cuda":
            peaks = {
                "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
                "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            }
    dist.destroy_process_group()
    return {"spec": dict(spec), **peaks, "least_step_seconds": min(seconds), "torch": torch.__version__}


def _prepared(spec: Spec, strategy: Strategy, ranks: int, device: str) -> Training:
    """The model wrapped as on one of `ranks`, with its optimizer and inputs."""
    set_precision(strategy.precision)
    torch.manual_seed(0)
    model = models.build(spec.model, spec.data, device=device, dtype=torch.float32)
    micro_batch = strategy.micro_batch if isinstance(strategy.micro_batch, int) else 1
    module, inputs = model.module, model.inputs(micro_batch)
    checkpointing.apply(module, strategy.checkpointing)
    if strategy.sharding in FULLY_SHARDED:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        mesh = init_device_mesh(device, (ranks,), mesh_dim_names=("shard",))
        fsdp.shard(module, mesh, strategy.sharding, strategy.precision)
        strategy = replace(strategy, precision="fp32")  # FSDP's own policy casts, not autocast
    else:
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        module = DistributedDataParallel(module)
    return Training(
        module=module,
        inputs=inputs,
        optimizer=build_optimizer(strategy.optimizer, strategy.optimizer_implementation, module, real=True),
        strategy=strategy,
        device=device,
        micro_batch=micro_batch,
        accumulation=1,
        tokens_per_sample=model.samples_to_tokens,
        notes=(),
        trainable=[parameter for parameter in module.parameters() if parameter.requires_grad],
    )


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@click.command()
@click.argument("runs", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="JSON lines.")
@click.option("--device", default="cuda", type=click.Choice(["cuda", "cpu"]))
def main(runs: Path, output: Path, device: str) -> None:
    """Run the specs of RUNS as one rank of several each, and write one JSON record a line."""
    for line in runs.read_text(encoding="utf-8").splitlines():
        asked = json.loads(line)
        with multiprocessing.get_context("spawn").Pool(1) as alone:
            record = {"name": asked["name"], **alone.apply(run, (asked["spec"], device))}
        with output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        click.echo(f"{record['name']}: {1000 * record['least_step_seconds']:.1f} ms a step")


if __name__ == "__main__":
    main()
