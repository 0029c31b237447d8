"""Predicted against measured: what is compared, how it is grouped, and what is said of memory."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from calibrate import check
from calibrate.cli import calibrate
from catalog.errors import RigplanError


def _answer(seconds: float, host_bound_share: float = 0.0, verdict: str = "fits") -> SimpleNamespace:
    return SimpleNamespace(
        step=SimpleNamespace(
            seconds=seconds, low_seconds=0.9 * seconds, high_seconds=1.1 * seconds, known="measured",
            forward_seconds=seconds / 3, backward_seconds=seconds / 2, optimizer_seconds=seconds / 6,
            host_bound_share=host_bound_share,
        ),
        memory=SimpleNamespace(peak_allocated_bytes=1 << 30, peak_reserved_bytes=3 << 29, known="measured"),
        strategy=SimpleNamespace(
            precision="bf16-mixed", optimizer="adamw", optimizer_implementation="foreach", accumulation=1,
            checkpointing="none", compile=False,
        ),
        hardware=SimpleNamespace(gpu="h200-sxm"),
        verdict=verdict,
    )  # fmt: skip


def _asked(*seconds: float, **settings: Any) -> Any:
    return lambda spec, *, profile, timed: _answer(*seconds, **settings)


def _records() -> list[dict[str, Any]]:
    spec = {"model": {"name": "gpt2"}, "hardware": [{"gpu": ["h200-sxm"]}]}
    return [
        {"name": "near", "spec": spec, "step_seconds": 0.100, "forward_seconds": 0.04, "peak_allocated_bytes": 1 << 30},
        {"name": "far", "spec": spec, "step_seconds": 0.050, "host_seconds": 0.049},
        {"name": "full", "spec": spec, "oom": True, "limit_bytes": 1 << 30},
        {"name": "broken", "spec": spec, "error": "ValueError", "message": "no such kernel"},
    ]


def test_each_run_is_compared_and_what_is_left_out_is_said() -> None:
    cases, left_out = check.compared(_records(), estimate=_asked(0.102, verdict="does-not-fit"))
    assert [(case.name, case.covered) for case in cases] == [("near", True), ("far", False), ("full", None)]
    assert cases[0].error() == pytest.approx(0.02)
    assert cases[0].error("forward") == pytest.approx(0.034 / 0.04 - 1)
    assert cases[0].error("peak allocated") == 0.0
    assert "peak reserved" not in cases[0].pairs  # it was not measured
    assert left_out == [("broken", "no such kernel")]


def test_a_verdict_is_right_where_it_says_what_happened() -> None:
    for verdict, words in (
        ("fits", ["right", "right", "wrong"]),
        ("does-not-fit", ["wrong", "wrong", "right"]),
        ("borderline", ["borderline"] * 3),
    ):
        cases, _ = check.compared(_records(), estimate=_asked(0.102, verdict=verdict))
        assert [case.memory for case in cases] == words


def test_a_run_within_less_memory_is_asked_with_that_limit() -> None:
    seen: list[Any] = []

    def remember(spec: Any, *, profile: str, timed: bool) -> SimpleNamespace:
        seen.append((spec["hardware"], timed))
        return _answer(0.1)

    check.compared(_records()[2:3], estimate=remember)
    assert seen == [({"gpu": ["h200-sxm"], "memory_limit": 1 << 30}, False)]


def test_the_worst_comes_first_and_host_bound_runs_apart() -> None:
    cases, left_out = check.compared(_records(), estimate=_asked(0.102, verdict="does-not-fit"))
    lines = list(check.report(cases, left_out))
    rows = {line.split("  ")[0]: line.split() for line in lines[0].splitlines()[2:]}
    assert rows["step, device-bound"][2:] == ["1", "2.0%", "2.0%", "2.0%", "near", "+2.0%", "100%"]
    assert rows["step, host-bound"][2:] == ["1", "104.0%", "104.0%", "104.0%", "far", "+104.0%", "0%"]
    worst = next(line for line in lines if line.startswith("worst steps"))
    assert worst.index("far ") < worst.index("near ")
    assert "verdict on 1 runs that ran out of memory: 1 right, 0 borderline, 0 wrong" in lines
    assert "verdict on 2 runs that fitted: 0 right, 0 borderline, 2 wrong (near, far)" in lines
    assert lines[-1] == "left out broken: no such kernel"


def test_runs_are_grouped_by_gpu_family_and_knob() -> None:
    cases, left_out = check.compared(_records()[:2], estimate=_asked(0.102))
    tables = {line.split()[0]: line for line in check.report(cases, left_out) if line}
    for title, member in (("GPU", "h200-sxm"), ("family", "gpt2"), ("knob", "adamw foreach")):
        row = next(line for line in tables[title].splitlines() if line.startswith(member))
        assert row.removeprefix(member).split()[:3] == ["2", "53.0%", "104.0%"]


def test_without_a_host_time_the_prediction_says_what_the_limit_was() -> None:
    cases, _ = check.compared(_records()[:1], estimate=_asked(0.102, host_bound_share=0.8))
    assert cases[0].host_bound


def test_a_spec_that_cannot_be_estimated_is_left_out_with_its_reason() -> None:
    def refuses(spec: object, *, profile: str, timed: bool) -> object:
        raise RigplanError("no such model")

    assert check.compared(_records()[:1], estimate=refuses) == ([], [("near", "no such model")])


def test_the_profile_is_handed_on_and_progress_told() -> None:
    seen, told = [], []

    def remember(spec: object, *, profile: str, timed: bool) -> SimpleNamespace:
        seen.append(profile)
        return _answer(0.1)

    check.compared(_records()[:2], "mine.json", remember, report=lambda *done: told.append(done))
    assert seen == ["mine.json"] * 2
    assert told == [(1, 2, "near"), (2, 2, "far")]


def test_two_workers_find_what_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    records = _records()
    alone = check.compared(records, estimate=_answer_of)
    assert check.compared(records, estimate=_answer_of, workers=2) == alone


def _answer_of(spec: object, *, profile: str, timed: bool) -> SimpleNamespace:
    return _answer(0.102)  # a name of the module, which a worker can be sent


def test_only_names_runs_and_a_star_stands_for_anything() -> None:
    assert [record["name"] for record in check.chosen(_records(), ["f*"])] == ["far", "full"]
    with pytest.raises(RigplanError, match="found no run named tiny; wanted one of near, far"):
        check.chosen(_records(), ["tiny"])


def test_runs_are_read_from_json_lines_and_from_what_a_calibration_keeps(tmp_path: Path) -> None:
    near = _records()[0]
    lines = tmp_path / "runs.jsonl"
    lines.write_text("\n".join(json.dumps(line) for line in (near, {"header": {}}, {"training": near})) + "\n")
    assert check.read(lines) == [near, near]


def test_runs_are_read_from_csv(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("name,spec,step_seconds,peak_reserved_bytes,oom\nnear,gpt2.yaml,0.1,2e9,\nfull,gpt2.yaml,,,true\n")
    spec = str(tmp_path / "gpt2.yaml")
    assert check.read(table) == [
        {"name": "near", "spec": spec, "step_seconds": 0.1, "peak_reserved_bytes": 2e9},
        {"name": "full", "spec": spec, "oom": True},
    ]


def test_a_table_without_spec_or_with_words_for_numbers_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    for text, told in (
        ("model,ms\ngpt2,3\n", "found columns model, ms; wanted at least spec and step_seconds"),
        ("spec,step_seconds\ngpt2.yaml,fast\n", "wanted a spec and numbers in seconds and bytes"),
    ):
        table.write_text(text)
        result = CliRunner().invoke(calibrate, ["check", str(table)])
        assert result.exit_code == 2
        assert told in result.output


@pytest.mark.slow
def test_pythia_160m_on_the_h200_comes_out_within_4_percent(root: Path) -> None:
    records = check.chosen(check.read(root / "tests/measured/h200_training.jsonl"), ["pythia-160m"])
    cases, left_out = check.compared(records)
    assert left_out == []
    assert abs(cases[0].error()) < 0.04  # 65.2 ms measured
    assert abs(cases[0].error("peak reserved")) < 0.03  # 17.2 GiB
