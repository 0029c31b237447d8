"""A user's mistake is one line on stderr and exit code 2, never a traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.cli import main
from tests.planner.test_search import TINY, spec

Write = Callable[[object], Path]
Told = Callable[..., str]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    """Run `rigplan` as a shell would; it must leave with 2 and one line, which is returned."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["rigplan", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert left.value.code == 2
        assert out == ""
        assert "Traceback" not in err
        lines = [line for line in err.splitlines() if not re.match(r"\d+ s: ", line)]  # how long it has taken so far
        assert len(lines) == 1
        assert lines[0].startswith("rigplan: error: ")
        return lines[0].removeprefix("rigplan: error: ")

    return run


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (spec(hardware={"gpu": "rtx-3091"}), "rtx-3090"),
        (spec(hardware={"gpu": "a100"}), "a100-sxm4-80gb"),
        (spec(hardware={"gpu": "rtx-3090", "count": 0}), "found 0, wanted a positive number of GPUs"),
        (spec({"micro_batch": -4}), "found -4, wanted a positive integer or auto"),
        (spec({"micro_bach": 4}), "did you mean micro_batch?"),
        (spec({"precision": "bf17"}), "training.precision: found 'bf17'"),
        (spec() | {"data": {"total": "300 bananas"}}, "bananas"),
        (spec() | {"model": {"name": "pithya-1b"}}, "pythia-1b"),
        (spec() | {"model": {"config": "missing.json"}}, "missing.json"),
        (spec() | {"model": {"module": "missing.py:make"}}, "missing.py"),
        (spec({"global_batch": 6}), "does not divide"),
        (spec({"offload": "all"}), "offload"),
        ("- a\n- list\n", "wanted a mapping"),
        ("model: [unclosed\n", "is not YAML"),
        ("", "found nothing"),
        (
            "model: {name: gpt2}\nhardware: {gpu: l4}\nmodel: {name: opt-125m}\n",
            "line 3 is not YAML (model is given twice)",
        ),
        ("model: {name: gpt2, name: opt-125m}\n", "line 1 is not YAML (name is given twice)"),
        ("[" * 5000, "is not YAML"),
    ],
)
def test_a_mistake_in_a_spec_is_told_in_a_line(content: Any, words: str, spec_file: Write, told: Told) -> None:
    assert words in told("estimate", spec_file(content))


@pytest.mark.parametrize("command", ["fits", "estimate", "plan"])
def test_a_spec_that_is_not_there_is_told_by_every_command(command: str, told: Told) -> None:
    assert told(command, "nowhere.yaml").startswith("nowhere.yaml: no such file")


def test_a_wrong_option_is_told_in_a_line(told: Told) -> None:
    assert told("fits", "--max", "patience", "spec.yaml").startswith("Invalid value for '--max'")
    assert "No such command 'fit'" in told("fit", "spec.yaml")


def test_a_profile_that_is_not_there_is_told(spec_file: Write, told: Told) -> None:
    assert "nowhere.json" in told("estimate", spec_file(spec()), "--profile", "nowhere.json")


def test_a_module_file_that_raises_is_told(spec_file: Write, told: Told, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no luck today')\n")
    line = told("fits", spec_file(spec() | {"model": {"module": "broken.py:make"}}))
    assert "broken.py" in line
    assert "no luck today" in line


def test_a_factory_that_raises_is_told(spec_file: Write, told: Told, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def make(batch_size):\n    raise ValueError('no luck either')\n")
    assert "no luck either" in told("fits", spec_file(spec() | {"model": {"module": "broken.py:make"}}))


BRANCHING = """
import torch

class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        return y.sum() if y.sum().item() > 0 else y.mean()

def make(batch_size):
    return Branching(), {"x": torch.zeros(batch_size, 8)}
"""


@pytest.mark.parametrize("choices", ["none", ["none", "full"]])
def test_a_model_that_cannot_be_traced_is_told_with_its_operator(
    choices: Any, spec_file: Write, told: Told, tmp_path: Path
) -> None:
    (tmp_path / "branching.py").write_text(BRANCHING)
    content = spec({"checkpointing": choices}) | {"model": {"module": "branching.py:make"}}
    line = told("plan", spec_file(content))
    assert "item" in line or "_local_scalar_dense" in line


def test_two_mistakes_are_two_lines(
    spec_file: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = spec_file({"model": dict(TINY), "training": {"precision": "x"}, "hardware": {"gpu": "rtx-3090", "count": 0}})
    monkeypatch.setattr(sys, "argv", ["rigplan", "fits", str(path)])
    with pytest.raises(SystemExit):
        main()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("rigplan: error: ") for line in lines)


def test_files_that_are_none_are_told_in_plain_words(spec_file: Write, told: Told, tmp_path: Path) -> None:
    binary, folder = tmp_path / "binary", tmp_path / "folder"
    binary.write_bytes(b"\xdd\xff\x00")
    folder.mkdir()
    for file, why in ((binary, "it is not UTF-8 text"), (folder, "Is a directory")):
        assert f"is not a profile ({why})" in told("estimate", spec_file(spec()), "--profile", file)
        assert f"cannot be read ({why}); wanted a CSV" in told("prices", "l4", "--from-csv", file)
    (tmp_path / "other.json").write_text("{}")
    assert "is not a profile (it has no " in told("estimate", spec_file(spec()), "--profile", tmp_path / "other.json")


def test_a_mistake_is_told_without_what_fills_the_screen(told: Told) -> None:
    assert len(told("gpus", "x" * 5000)) < 160
    assert told("export", "spec.yaml").endswith("training-arguments, torchrun, torchtitan (see --help)")
    assert "\t" not in told("export", "spec.yaml")


@pytest.mark.parametrize("command", ["import", "diff"])
def test_brackets_without_end_are_told_in_a_line(command: str, spec_file: Write, told: Told, tmp_path: Path) -> None:
    endless = tmp_path / "endless.json"
    endless.write_text('{"a":' * 5000)
    assert "endless.json: is" in told(command, endless, *([spec_file(spec())] if command == "diff" else []))


def test_a_pipe_that_is_closed_early_is_no_mistake(root: Path) -> None:
    command = "from planner.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "spec", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert (process.wait(), process.stderr.read()) == (0, b"")
    process.stderr.close()
