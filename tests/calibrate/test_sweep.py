"""Sweep: order, time limit, resumption, what cannot be timed."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from calibrate import sweep
from calibrate.calls import make, tensor
from calibrate.replay import Rotation
from calibrate.sweep import Job
from catalog.errors import RigplanError
from planner.call import Call, from_json
from planner.operators import KINDS, describe


@dataclass
class Timed:
    median_s: float = 2.0
    low_s: float = 1.0
    high_s: float = 3.0


def measured_once(rotation: Rotation) -> Timed:
    rotation()
    return Timed()


def _jobs(count: int) -> list[Job]:
    return [Job(make("neg.default", tensor("f32", 8 * (place + 1)))) for place in range(count)]


def test_halving_visits_every_place_once_the_middle_and_ends_first() -> None:
    order = list(sweep.halving(9))
    assert sorted(order) == list(range(9))
    assert set(order[:3]) == {4, 8, 0}


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 100])
def test_halving_is_a_permutation(count: int) -> None:
    assert sorted(sweep.halving(count)) == list(range(count))


def test_a_fifth_of_the_sweep_covers_every_kind_small_and_large(
    kernel_calls: dict[str, list[Call]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep.kernels, "KERNELS", {kind: lambda of=calls: of for kind, calls in kernel_calls.items()})
    jobs = sweep.all_jobs()
    assert 1500 <= len(jobs) <= 9000  # 12 to 16 a second on an H200: ten minutes
    first = [describe(job.call) for job in jobs[: len(jobs) // 5]]
    assert set(KINDS) - {"rnn"} <= {operator.kind for operator in first}  # what is unknown to the pricing has no kind
    sizes = [operator.flop for operator in first if operator.kind == "matmul"]
    assert max(sizes) > 1e11
    assert min(sizes) < 1e8


def test_fp32_products_are_timed_with_and_without_tf32() -> None:
    product, sum_ = (make(name, tensor("f32", 8, 8), tensor("f32", 8, 8)) for name in ("mm.default", "add.Tensor"))
    assert [job.tf32 for job in sweep.jobs_of([product, product])] == [False, True]
    assert [job.tf32 for job in sweep.jobs_of([sum_])] == [False]


def test_a_measurement_is_a_line_with_its_call_and_quartiles(tmp_path: Path) -> None:
    jobs = _jobs(1)
    summary = sweep.run(jobs, tmp_path / "runs.jsonl", measured_once, device="cpu")
    (line,) = sweep.read_lines(tmp_path / "runs.jsonl")
    assert summary.measured == 1
    assert from_json(line["call"]) == jobs[0].call
    assert (line["seconds"], line["low_seconds"], line["high_seconds"], line["tf32"]) == (2.0, 1.0, 3.0, False)


def test_a_second_run_times_only_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    sweep.run(_jobs(2), path, measured_once, device="cpu")
    summary = sweep.run(_jobs(5), path, measured_once, device="cpu")
    assert (summary.known, summary.measured) == (2, 3)
    assert len(sweep.read_lines(path)) == 5


def test_a_line_cut_short_is_timed_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    sweep.run(_jobs(2), path, measured_once, device="cpu")
    path.write_text(path.read_text()[:-20])
    summary = sweep.run(_jobs(2), path, measured_once, device="cpu")
    assert (summary.known, summary.measured) == (1, 1)
    assert len(sweep.known_keys(path)) == 2


def test_an_interruption_keeps_what_there_is(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    times = iter(range(10))

    def interrupted(rotation: Rotation) -> Timed:
        if next(times) == 3:
            raise KeyboardInterrupt
        return Timed()

    summary = sweep.run(_jobs(9), path, interrupted, device="cpu")
    assert summary.interrupted
    assert (summary.measured, summary.left) == (3, 6)
    assert len(sweep.read_lines(path)) == 3


def test_time_that_is_over_leaves_the_rest(tmp_path: Path) -> None:
    summary = sweep.run(_jobs(4), tmp_path / "runs.jsonl", measured_once, device="cpu", minutes=0)
    assert (summary.measured, summary.left) == (0, 4)


def test_what_cannot_be_replayed_is_written_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    unknown = Job(Call("frobnicate.default", (), (), ()))
    summary = sweep.run([unknown, *_jobs(1)], path, measured_once, device="cpu")
    assert summary.measured == 1
    assert "no operator frobnicate" in summary.skipped[0][1]
    assert "no operator frobnicate" in json.loads(path.read_text().splitlines()[0])["reason"]
    assert sweep.run([unknown], path, measured_once, device="cpu").known == 1


def test_a_dead_device_ends_the_sweep_and_a_second_run_leaves_the_culprit_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(rotation: Rotation) -> Timed:
        raise RuntimeError("CUDA error: device-side assert triggered\nand more")

    path = tmp_path / "runs.jsonl"
    with monkeypatch.context() as dead:
        dead.setattr(sweep, "_alive", lambda device: False)
        with pytest.raises(RigplanError, match=r"stopped answering at neg\.default .*device-side assert triggered"):
            sweep.run(_jobs(3), path, fails, device="cpu")
    summary = sweep.run(_jobs(3), path, measured_once, device="cpu")
    assert (summary.known, summary.measured) == (1, 2)


def test_the_tf32_switch_is_set_for_a_job_and_put_back(tmp_path: Path) -> None:
    import torch

    seen = []

    def look(rotation: Rotation) -> Timed:
        seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        return Timed()

    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    product = make("mm.default", tensor("f32", 8, 8), tensor("f32", 8, 8))
    sweep.run(sweep.jobs_of([product]), tmp_path / "runs.jsonl", look, device="cpu")
    assert seen == [(False, False), (True, True)]
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_a_call_of_a_trace_asks_for_tf32_only_where_that_changes_what_runs() -> None:
    product, sum_ = (make(name, tensor("f32", 8, 8), tensor("f32", 8, 8)) for name in ("mm.default", "add.Tensor"))
    half = make("mm.default", tensor("bf16", 8, 8), tensor("bf16", 8, 8))
    assert [sweep.job_of(call, tf32=True).tf32 for call in (product, sum_, half)] == [True, False, False]
    assert not sweep.job_of(product, tf32=False).tf32
