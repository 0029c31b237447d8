"""Calibration as a SLURM job: what the cluster is asked for, what its processes run, and how a failure is told."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from calibrate import slurm
from calibrate.cli import calibrate
from catalog.errors import RigplanError


class FakeExecutor:
    """Remembers what it is asked for, and runs a job at once, as its only process."""

    parameters: dict[str, Any]
    submitted: tuple[Any, ...]
    failing = False

    def __init__(self, folder: str) -> None:
        FakeExecutor.folder = folder  # type: ignore[attr-defined]

    def update_parameters(self, **parameters: Any) -> None:
        FakeExecutor.parameters = parameters

    def submit(self, work: Callable[..., str], *arguments: Any) -> Any:
        FakeExecutor.submitted = arguments

        def results() -> list[str]:
            if FakeExecutor.failing:
                raise RuntimeError("job failed\nCUDA driver is too old")
            return [work(*arguments)]

        return SimpleNamespace(job_id="4711", results=results)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeExecutor]:
    environment = SimpleNamespace(global_rank=3, local_rank=1, num_tasks=4, hostnames=["node7", "node8"])
    fake = SimpleNamespace(AutoExecutor=FakeExecutor, JobEnvironment=lambda: environment)
    monkeypatch.setitem(sys.modules, "submitit", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(FakeExecutor, "failing", False)
    monkeypatch.chdir(tmp_path)
    return FakeExecutor


def test_a_run_becomes_a_job_of_one_gpu_with_partition_account_and_time(
    cluster: type[FakeExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "work", lambda command, where: f"ran {' '.join(command)}\n")
    asked = [
        "run",
        "--quick",
        "-o",
        "mine.json",
        "--slurm",
        "--partition",
        "gpu",
        "--account",
        "lab",
        "--time",
        "90min",
    ]
    done = CliRunner().invoke(calibrate, asked)
    assert done.exit_code == 0, done.output
    assert cluster.parameters == {
        "name": "rigplan-calibrate",
        "timeout_min": 90,
        "nodes": 1,
        "gpus_per_node": 1,
        "tasks_per_node": 1,
        "slurm_partition": "gpu",
        "slurm_account": "lab",
    }
    assert "SLURM job 4711 submitted; its logs are in slurm-logs" in done.output
    assert f"ran run --quick -o {Path.cwd() / 'mine.json'}" in done.output


def test_collectives_take_one_process_for_each_gpu_of_all_nodes(
    cluster: type[FakeExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "work", lambda command, where: "")
    link = ["--link", "infiniband-ndr-8x400", "--out", "link.json"]
    done = CliRunner().invoke(calibrate, ["collectives", *link, "--slurm", "--nodes", "2", "--gpus-per-node", "4"])
    assert done.exit_code == 0, done.output
    assert [cluster.parameters[name] for name in ("nodes", "gpus_per_node", "tasks_per_node")] == [2, 4, 4]
    assert cluster.submitted[0][:3] == ["collectives", "--link", "infiniband-ndr-8x400"]


def test_a_process_of_the_job_is_told_its_rank_and_runs_the_command(
    cluster: type[FakeExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
    assert "--partition" in slurm.work(["run", "--help"], slurm.Place(nodes=2, gpus_per_node=2))
    told = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")]
    assert told == ["3", "1", "4", "node7", "29500"]


def test_a_command_that_fails_fails_its_job() -> None:
    with pytest.raises(RuntimeError, match="found --minutes and --quick"):
        slurm.work(["run", "--quick", "--minutes", "3"], slurm.Place())


def test_a_failed_job_is_told_in_a_line(cluster: type[FakeExecutor]) -> None:
    cluster.failing = True
    with pytest.raises(RigplanError, match="SLURM job 4711 failed: CUDA driver is too old"):
        slurm.run(["run"], slurm.Place(), lambda _: None)


def test_without_submitit_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(RigplanError, match="pip install submitit"):
        slurm.run(["run"], slurm.Place(), lambda _: None)


def test_a_job_is_given_no_standard_input() -> None:
    done = CliRunner().invoke(calibrate, ["run", "--slurm", "--for", "-"], input="model: {name: gpt2}")
    assert done.exit_code == 2
    assert "--for -: a job of the cluster reads no standard input; wanted a file" in done.stderr


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(RigplanError):
        slurm.place(None, None, "soon")


def test_collectives_without_ranks_say_how_to_start_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    done = CliRunner().invoke(calibrate, ["collectives", "--link", "nvlink4-nvswitch", "--out", "link.json"])
    assert done.exit_code == 2
    assert "torchrun --nproc-per-node 8 -m calibrate.collectives" in done.output
