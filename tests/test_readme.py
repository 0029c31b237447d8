"""Every `rigplan` command that README and docs show is run, in a copy of the examples."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from planner.cli import rigplan

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
# What needs a GPU or more than a minute without a cache.
SLOW = (
    "combinations", "pythia-1b", "lingvanex", "llama", "vit.yaml", "calibrate", "explain examples/gpt2",
    "gpt2-machines",
)  # fmt: skip


def commands() -> list[str]:
    """The commands after a prompt in the shell blocks, each once."""
    blocks = [
        block for page in PAGES for block in re.findall(r"```(?:console|sh)\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    found = [match for block in blocks for match in re.findall(r"^\$ rigplan (.+)$", block, re.MULTILINE)]
    return list(dict.fromkeys(re.sub(r"\s+#.*", "", command) for command in found))


def _marked(command: str) -> object:
    slow = any(word in command for word in SLOW) and not command.startswith("models")
    return pytest.param(command, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("command", [_marked(command) for command in commands()])
def test_a_command_that_is_shown_works(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    given = None
    for part in command.split(" | rigplan "):  # each reads what the one before has written
        done = CliRunner().invoke(rigplan, shlex.split(part), input=given, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert done.stdout.strip()
        given = done.stdout


def test_the_readme_shows_every_command_that_answers() -> None:
    shown = {command.split()[0] for command in commands()}
    assert shown >= {"fits", "estimate", "plan", "explain", "diff", "report", "gpus", "prices", "models"}


def test_the_readme_names_the_exit_codes() -> None:
    text = (ROOT / "README.md").read_text()
    assert [line.split("|")[1].strip() for line in text.splitlines() if re.match(r"\| \d \|", line)] == ["0", "1", "2"]


def test_the_spec_of_the_readme_is_one(spec_file: object) -> None:
    from planner.spec import Spec
    from planner.strategy import choices

    text = re.search(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert text is not None
    import yaml

    assert len(list(choices(Spec.load(yaml.safe_load(text[1]))))) == 20
