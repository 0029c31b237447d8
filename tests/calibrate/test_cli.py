"""The command line of calibrate: one line and exit code 2 for what is wrong, tables for what is right."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner, Result

from calibrate import check
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
    assert all(name in _run("--help").output for name in ("run", "check", "train"))
    assert all(name in _run("run", "--help").output for name in ("--minutes", "--quick", "--for", "--resume"))
    assert "CASES_FILE" in _run("train", "--help").output


def _answer(seconds: float, host_bound_share: float = 0.0) -> SimpleNamespace:
    return SimpleNamespace(
        step=SimpleNamespace(
            seconds=seconds, low_seconds=0.9 * seconds, high_seconds=1.1 * seconds, known="measured",
            forward_seconds=seconds / 3, backward_seconds=seconds / 2, optimizer_seconds=seconds / 6,
            host_bound_share=host_bound_share,
        ),
        memory=SimpleNamespace(peak_allocated_bytes=1 << 30),
        strategy=SimpleNamespace(
            precision="bf16-mixed", optimizer="adamw", micro_batch=4, checkpointing="none", compile=False
        ),
        hardware=SimpleNamespace(gpu="h200-sxm"),
    )  # fmt: skip


def _records() -> list[dict[str, object]]:
    spec = {"model": {"name": "gpt2"}}
    return [
        {"name": "near", "spec": spec, "step_seconds": 0.100, "forward_seconds": 0.04, "peak_allocated_bytes": 1 << 30},
        {"name": "far", "spec": spec, "step_seconds": 0.050},
        {"name": "full", "spec": spec, "oom": True},
    ]


def test_check_compares_each_run_and_says_what_it_leaves_out() -> None:
    cases, left_out = check.compared(_records(), estimate=lambda spec: _answer(0.102))
    assert [(case.name, round(case.error, 3), case.covered) for case in cases] == [
        ("near", 0.02, True),
        ("far", 1.04, False),
    ]
    assert left_out == [("full", "out of memory")]


def test_the_worst_run_is_named_first() -> None:
    cases, left_out = check.compared(_records(), estimate=lambda spec: _answer(0.102))
    lines = "\n".join(check.report(cases, left_out))
    assert lines.index("far ") < lines.index("near ")
    assert "+104.0%" in lines
    assert "left out full: out of memory" in lines
    assert "h200-sxm" in lines
    assert "gpt2" in lines


def test_host_bound_runs_are_judged_apart() -> None:
    cases, left_out = check.compared(_records()[:1], estimate=lambda spec: _answer(0.102, host_bound_share=0.8))
    lines = list(check.report(cases, left_out))
    assert "host-bound" in lines[0]
    assert not any("device-bound" in line for line in lines)


def test_a_spec_that_cannot_be_estimated_is_left_out_with_its_reason() -> None:
    def refuses(spec: object) -> object:
        raise RigplanError("no such model")

    assert check.compared(_records()[:1], estimate=refuses) == ([], [("near", "no such model")])


def test_the_profile_is_handed_on() -> None:
    seen = []

    def remember(spec: object, profile: str) -> SimpleNamespace:
        seen.append(profile)
        return _answer(0.1)

    check.compared(_records()[:1], "mine.json", remember)
    assert seen == ["mine.json"]


def test_runs_are_read_from_json_lines_and_csv(tmp_path: Path) -> None:
    lines = tmp_path / "runs.jsonl"
    lines.write_text(json.dumps(_records()[0]) + "\n")
    table = tmp_path / "runs.csv"
    table.write_text("name,spec,step_seconds\nnear,gpt2.yaml,0.1\n")
    assert check.read(lines)[0]["name"] == "near"
    assert check.read(table)[0] == {"name": "near", "spec": str(tmp_path / "gpt2.yaml"), "step_seconds": 0.1}


def test_a_table_without_spec_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("model,ms\ngpt2,3\n")
    result = _run("check", str(table))
    assert result.exit_code == 2
    assert "found columns model, ms; wanted at least spec and step_seconds" in result.output


FACTS = {"accelerator": "h200-sxm", "torch": "2.11.0", "warnings": ["busy: test"]}


class _FakeMachine:
    """A GPU that is not there: facts, host factors and a clock that makes every call take its bytes over 1 TB/s."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        from calibrate import device, host, sweep, timing
        from calibrate.calls import make, tensor

        calls = [make("neg.default", tensor("f32", 64 << power)) for power in range(8)]
        patch.setattr(device, "header", lambda: FACTS)
        patch.setattr(host, "factors", lambda: iter([host.HostFactor("host_view_s", 2e-6, 1e-6, 3e-6)]))
        patch.setattr(sweep, "all_jobs", lambda: sweep.jobs_of(calls))
        patch.setattr(sweep.run, "__kwdefaults__", {**sweep.run.__kwdefaults__, "device": "cpu"})
        patch.setattr(timing, "measure", lambda work, **limits: timing.Timing(1e-5, 9e-6, 11e-6, 10))


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
    _FakeMachine(monkeypatch)
    out = str(tmp_path / "mine.json")
    assert _run("run", "-o", out, "--minutes", "0").exit_code == 2  # nothing timed in no time
    refused = _run("run", "-o", out)
    assert refused.exit_code == 2
    assert "add --resume" in refused.output
    assert "8 calls timed" in _run("run", "-o", out, "--resume").output
    assert "0 calls timed, 8 known before" in _run("run", "-o", out, "--resume").output


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
