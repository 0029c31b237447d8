"""The command line of calibrate: one line and exit code 2 for what is wrong, tables for what is right."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from calibrate.cli import calibrate
from catalog.errors import RigplanError


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(calibrate, list(arguments))


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_run_says_what_it_needs_in_one_line(tmp_path: Path) -> None:
    result = _run("run", "-o", str(tmp_path / "profile.json"))
    assert result.exit_code == 2
    assert result.output.startswith("Error: calibrate needs an NVIDIA GPU that torch can see")
    assert len(result.output.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_quick_and_minutes_exclude_each_other() -> None:
    result = _run("run", "--quick", "--minutes", "3")
    assert result.exit_code == 2
    assert "found --minutes and --quick; wanted one of them" in result.output


def test_help_names_the_commands_and_their_options() -> None:
    assert all(name in _run("--help").output for name in ("run", "check", "steps", "train"))
    assert all(name in _run("run", "--help").output for name in ("--minutes", "--quick", "--for", "--resume"))
    assert "CASES_FILE" in _run("train", "--help").output


FACTS = {"accelerator": "h200-sxm", "torch": "2.11.0", "warnings": ["busy: test"]}


class _FakeMachine:
    """A GPU that is not there: facts, host factors and a clock that makes every call take its bytes over 1 TB/s."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        from calibrate import device, host, steps, sweep, timing
        from calibrate.calls import make, tensor

        calls = [make("neg.default", tensor("f32", 64 << power)) for power in range(8)]
        patch.setattr(device, "header", lambda: FACTS)
        patch.setattr(host, "factors", lambda: iter([host.HostFactor("host_view_s", 2e-6, 1e-6, 3e-6)]))
        self.trained: list[tuple[str, float]] = []
        patch.setattr(steps, "trained", self._train)
        patch.setattr(steps, "improve", self._improve)
        patch.setattr(sweep, "all_jobs", lambda: sweep.jobs_of(calls))
        patch.setattr(sweep.run, "__kwdefaults__", {**sweep.run.__kwdefaults__, "device": "cpu"})
        patch.setattr(timing, "measure", lambda work, **limits: timing.Timing(1e-5, 9e-6, 11e-6, 10))

    def _train(self, accelerator: str, minutes: float, say: object) -> list[dict[str, Any]]:
        self.trained.append((accelerator, minutes))
        return [{"name": "host-bert", "spec": {"model": {"name": "bert-base"}}, "pipelined_seconds": 0.037}]

    def _improve(self, path: Path, records: list[dict[str, Any]], say: object) -> dict[str, Any]:
        from catalog.profile import Factor

        self.improved = path, [record["name"] for record in records]
        return {"host_forward_op_s": Factor(31e-6, "s", "1 training runs limited by the host", 0.1)}


def test_a_run_writes_its_measurements_and_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from catalog import profile

    _FakeMachine(monkeypatch)
    out = tmp_path / "mine.json"
    result = _run("run", "-o", str(out))
    assert result.exit_code == 0, result.output
    assert "warning: busy: test" in result.output
    assert "8 calls timed" in result.output
    loaded = profile.load(out)
    assert loaded.accelerator == "h200-sxm"
    assert loaded.factors["host_view_s"].value == 2e-6
    assert len(loaded.points) == 8


def test_a_second_run_wants_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _FakeMachine(monkeypatch)
    out = str(tmp_path / "mine.json")
    assert _run("run", "-o", out, "--minutes", "0").exit_code == 2  # nothing timed in no time
    refused = _run("run", "-o", out)
    assert refused.exit_code == 2
    assert "add --resume" in refused.output
    assert "8 calls timed" in _run("run", "-o", out, "--resume").output
    assert "0 calls timed, 8 known before" in _run("run", "-o", out, "--resume").output
    assert len(machine.trained) == 1  # nor were the training steps made again


def test_a_run_trains_for_a_minute_of_ten_and_fits_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = _FakeMachine(monkeypatch)
    out = tmp_path / "mine.json"
    result = _run("run", "-o", str(out))
    assert result.exit_code == 0, result.output
    assert machine.trained == [("h200-sxm", 1.0)]
    assert machine.improved == (out, ["host-bert"])
    assert "host_forward_op_s        3.1e-05 s  (1 training runs limited by the host, spread 10.0%)" in result.output
    kept = [json.loads(line) for line in (tmp_path / "mine.json.runs.jsonl").read_text().splitlines()]
    assert [line["training"]["name"] for line in kept if "training" in line] == ["host-bert"]


def test_a_quick_run_trains_for_half_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _FakeMachine(monkeypatch)
    assert _run("run", "--quick", "-o", str(tmp_path / "mine.json")).exit_code == 0
    assert machine.trained == [("h200-sxm", 0.5)]


def test_training_steps_that_tell_nothing_do_not_cost_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from calibrate import steps

    _FakeMachine(monkeypatch)

    def refuse(*_: object) -> object:
        raise RigplanError("found 0 timed training runs")

    monkeypatch.setattr(steps, "improve", refuse)
    out = tmp_path / "mine.json"
    result = _run("run", "-o", str(out))
    assert result.exit_code == 0
    assert "warning: no factors from training steps: found 0 timed training runs" in result.output
    assert out.exists()


def test_steps_of_existing_records_go_into_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _FakeMachine(monkeypatch)
    runs, profile = tmp_path / "runs.jsonl", tmp_path / "mine.json"
    runs.write_text(json.dumps({"name": "mine", "spec": {}}) + "\n")
    profile.write_text("{}")
    result = _run("steps", str(runs), "--profile", str(profile))
    assert result.exit_code == 0, result.output
    assert machine.improved == (profile, ["mine"])
    assert f"{profile}: factors written" in result.output


def test_check_takes_runs_or_a_log_with_its_spec(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("iter 1: loss 3, time 5.00ms, mfu 1%\n")
    for arguments in ([], ["--from-log", str(log)], [str(log), "--from-log", str(log), "--spec", str(log)]):
        result = _run("check", *arguments)
        assert result.exit_code == 2
        assert "wanted either RUNS, or --from-log LOG with --spec SPEC" in result.output


def test_a_log_that_says_nothing_is_told_before_anything_is_traced(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("hello\n")
    result = _run("check", "--from-log", str(log), "--spec", str(log))
    assert result.exit_code == 2
    assert "found no step time in the log's 1 lines" in result.output


def test_a_log_is_compared_with_the_estimate_of_its_spec(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    log = tmp_path / "train.log"
    log.write_text("".join(f"step {number} | 100 ms/step\n" for number in range(10)))
    spec = root / "examples" / "custom_module.yaml"
    result = _run("check", "--from-log", str(log), "--spec", str(spec), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.strip().splitlines()[-1])
    assert found["reading"]["seconds"] == pytest.approx(0.1)
    assert found["ratio"] == pytest.approx(0.1 / found["predicted_seconds"])


def test_the_calls_of_a_spec_become_exact_points_of_the_shipped_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from calibrate import cli
    from calibrate.calls import make, tensor
    from calibrate.sweep import Job
    from catalog import profile

    _FakeMachine(monkeypatch)
    shipped = profile.Profile("shipped", "h200-sxm", "measured", 1, {}, {"old": 1.0}, {}, {}, {"matmul": 0.03})
    monkeypatch.setattr(profile, "own", lambda name: shipped if name == "h200-sxm" else None)
    product = make("mm.default", tensor("bf16", 8, 8), tensor("bf16", 8, 8))
    monkeypatch.setattr(cli, "_traced", lambda specs: [Job(product)])
    spec, out = tmp_path / "spec.yaml", tmp_path / "mine.json"
    spec.write_text("model: {name: gpt2}\n")
    result = _run("run", "--for", str(spec), "-o", str(out))
    assert result.exit_code == 0, result.output
    points = profile.load(out).points
    assert points["old"] == 1.0
    assert points[str(product)] == 1e-5
    assert profile.load(out).residuals == {"matmul": 0.03}


def test_the_walk_through_tells_what_the_shipped_profile_holds(root: Path) -> None:
    from catalog import profile

    text = (root / "docs" / "calibrating.md").read_text(encoding="utf-8")
    shipped = profile.own("h200-sxm")
    assert shipped is not None
    assert f"{len(shipped.points):,} exact points; torch {shipped.provenance['torch']}" in text
    assert len(shipped.residuals) > 20
    for kind, residual in shipped.residuals.items():
        assert f"| {kind} | {residual:.1%} |" in text
