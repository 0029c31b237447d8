"""SLURM: the same calibration as a job of a cluster, through submitit (the extra `slurm`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from catalog.errors import RigplanError
from catalog.units import parse_seconds

LOGS = Path("slurm-logs")  # where submitit keeps each job's arguments, output and result
PORT = 29500  # torchrun's own default


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job runs: one process a GPU. What is None is left to the cluster's defaults."""

    partition: str | None = None
    account: str | None = None
    minutes: int = 60
    nodes: int = 1
    gpus_per_node: int = 1


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--slurm` and what goes with it."""
    for decorate in (
        click.option("--time", "slurm_time", default="1h", show_default=True, help="Time limit of the job, as 90min."),
        click.option("--account", help="Account of the job."),
        click.option("--partition", help="Partition of the job."),
        click.option("--slurm", "as_job", is_flag=True, help="Run as a SLURM job and wait for it (needs submitit)."),
    ):
        command = decorate(command)
    return command


def place(partition: str | None, account: str | None, time: str, *, nodes: int = 1, gpus_per_node: int = 1) -> Place:
    """The place that the options ask for. Raises RigplanError for a time that cannot be read."""
    return Place(partition, account, max(1, round(parse_seconds(time) / 60)), nodes, gpus_per_node)


def run(command: Sequence[str], where: Place, say: Callable[[str], None], *, folder: Path = LOGS) -> str:
    """Run `rigplan calibrate COMMAND` as a job, in this folder, and return what its first process printed.

    Raises RigplanError when submitit is missing, or with the job's own words when it failed.
    """
    try:
        submitit: Any = import_module("submitit")
    except ImportError:
        raise RigplanError("--slurm needs submitit; pip install submitit") from None
    executor = submitit.AutoExecutor(folder=str(folder))
    named = {"slurm_partition": where.partition, "slurm_account": where.account}
    executor.update_parameters(
        name="rigplan-calibrate",
        timeout_min=where.minutes,
        nodes=where.nodes,
        gpus_per_node=where.gpus_per_node,
        tasks_per_node=where.gpus_per_node,
        **{key: value for key, value in named.items() if value is not None},
    )
    job = executor.submit(work, list(command), where)
    say(f"SLURM job {job.job_id} submitted; its logs are in {folder}")
    try:
        outputs: list[str] = job.results()
    except Exception as error:
        raise RigplanError(f"SLURM job {job.job_id} failed: {str(error).strip().splitlines()[-1]}") from error
    return outputs[0]


def work(command: list[str], where: Place) -> str:
    """What each process of the job does: find its place among the others, then run the command."""
    from click.testing import CliRunner

    from calibrate.cli import calibrate

    if where.nodes * where.gpus_per_node > 1:
        os.environ |= _rank()
    done = CliRunner().invoke(calibrate, command)
    if done.exit_code:
        raise RuntimeError(done.output)
    return done.output


def _rank() -> dict[str, str]:
    """What torchrun would tell a process, from what SLURM tells it."""
    job: Any = import_module("submitit").JobEnvironment()
    return {
        "RANK": str(job.global_rank),
        "LOCAL_RANK": str(job.local_rank),
        "WORLD_SIZE": str(job.num_tasks),
        "MASTER_ADDR": job.hostnames[0],
        "MASTER_PORT": str(PORT),
    }


__all__ = ["Place", "options", "place", "run", "work"]
