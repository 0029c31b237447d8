"""Two specs or saved answers side by side: the change adds up, and the knobs that differ are named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

import planner
from planner.cli import rigplan
from tests.planner.test_search import spec

BEFORE: Mapping[str, Any] = spec({"micro_batch": 4, "global_batch": 16})
AFTER: Mapping[str, Any] = spec({"micro_batch": 16, "global_batch": 16, "optimizer_implementation": "fused"})

SMALL_NEOX = {  # pythia-14m with a larger vocabulary
    "vocab_size": 50432, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4,
}  # fmt: skip


def run(*arguments: object, **options: str) -> Result:
    return CliRunner().invoke(rigplan, [str(argument) for argument in arguments], catch_exceptions=False, **options)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    for name, content in (("before.yaml", BEFORE), ("after.yaml", AFTER)):
        (tmp_path / name).write_text(yaml.safe_dump(dict(content)))
    return tmp_path / "before.yaml", tmp_path / "after.yaml"


def test_the_change_of_step_and_peak_is_made_of_its_parts(files: tuple[Path, Path]) -> None:
    found = json.loads(run("diff", *files, "--json").stdout)
    for side, content in (("before", BEFORE), ("after", AFTER)):
        answer = planner.estimate(content)
        assert found[side] == answer.model_dump(mode="json")
        assert answer.step is not None
        assert sum(item[side] for item in found["time"]) == pytest.approx(answer.step.seconds)
        assert sum(item[side] for item in found["memory"]) == answer.memory.peak_allocated_bytes
    knobs = {item["name"]: (item["before"], item["after"]) for item in found["knobs"]}
    assert knobs == {
        "training.micro_batch": ("4", "16"),
        "training.accumulation": ("4", "1"),
        "training.optimizer_implementation": ("foreach", "fused"),
    }


@pytest.mark.parametrize("width", ["80", "120"])
def test_the_page_has_both_sides(files: tuple[Path, Path], width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    text = run("diff", *files).stdout
    assert text.splitlines()[0].split() == ["before.yaml", "after.yaml", "change"]
    assert "waiting for the host" in text
    assert max(map(len, text.splitlines())) <= int(width)


def test_a_saved_answer_stands_for_its_spec(files: tuple[Path, Path], tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(run("explain", files[0], "--no-advice", "--json").stdout)
    fresh, kept = (json.loads(run("diff", one, files[1], "--json").stdout) for one in (files[0], saved))
    assert kept["time"] == fresh["time"]
    saved.write_text(run("plan", files[0], "--json").stdout)
    assert json.loads(run("diff", saved, files[1], "--json").stdout)["before"] == fresh["before"]


def test_one_side_may_come_from_standard_input(files: tuple[Path, Path]) -> None:
    done = run("diff", "-", files[1], "--json", input=files[0].read_text())
    assert json.loads(done.stdout)["knobs"] == json.loads(run("diff", *files, "--json").stdout)["knobs"]
    assert run("diff", "-", "-", input="").exit_code == 2


def test_a_model_by_name_and_one_by_config_differ_in_what_both_say(files: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    own = {**dict(BEFORE), "model": {"name": "pythia-14m"}}
    one.write_text(yaml.safe_dump(own))
    two.write_text(yaml.safe_dump({**own, "model": {"config": {"model_type": "gpt_neox", **SMALL_NEOX}}}))
    knobs = {
        item["name"]: (item["before"], item["after"])
        for item in json.loads(run("diff", one, two, "--json").stdout)["knobs"]
    }
    assert knobs == {
        "model.name": ("pythia-14m", "a gpt_neox by config"),
        "model.config.vocab_size": ("50304", "50432"),
    }


def test_an_answer_saved_without_its_spec_is_compared_by_what_it_says(files: tuple[Path, Path], tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(run("estimate", files[0], "--json").stdout)
    names = {item["name"] for item in json.loads(run("diff", saved, files[1], "--json").stdout)["knobs"]}
    assert names == {"training.micro_batch", "training.accumulation", "training.optimizer_implementation"}


def test_two_equal_specs_differ_in_nothing(files: tuple[Path, Path]) -> None:
    assert "Nothing that was asked differs." in run("diff", files[0], files[0]).stdout


def test_what_is_neither_is_one_line(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"verdict": "fits"}')
    done = run("diff", other, other)
    assert done.exit_code == 2
    assert "is no answer of this version" in done.stderr
