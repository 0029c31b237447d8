"""The project keeps its own promises: README's commands are the ones that CI runs, and what is shipped is declared."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

SETUP = "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e "


def shell_lines(readme: str) -> list[str]:
    """The lines of README's shell blocks."""
    return [line for block in re.findall(r"```sh\n(.*?)```", readme, re.DOTALL) for line in block.splitlines() if line]


def test_readme_sets_up_with_two_lines_that_stand_alone(root: Path) -> None:
    lines = [line for line in shell_lines((root / "README.md").read_text()) if "pip install" in line]
    assert lines == [
        f"{SETUP}. && .venv/bin/rigplan plan examples/pythia-1b.yaml",
        f"{SETUP}'.[test]' && .venv/bin/python -m pytest",
    ]


def test_ci_runs_exactly_the_test_line_of_the_readme(root: Path, tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    script = (root / ".ci" / "run").read_text()
    (tmp_path / ".ci" / "run").write_text(script)
    (tmp_path / "README.md").write_text((root / "README.md").read_text())
    log, fake = tmp_path / "log", tmp_path / "bin"
    for name in ("python3", "bash", ".venv/bin/pip", ".venv/bin/python", ".venv/bin/ruff", ".venv/bin/mypy"):
        _recorder(tmp_path / name if name.startswith(".venv") else fake / name, log)
    _recorder(tmp_path / ".venv/bin/lint-imports", log)
    (fake / "bash").unlink()  # only the programs are played, not the shell
    subprocess.run(
        ["/bin/bash", ".ci/run"], cwd=tmp_path, env=os.environ | {"PATH": f"{fake}:{os.environ['PATH']}"}, check=True
    )
    install = ["python3 -m venv .venv", "pip install -q -c constraints.txt -e .[test]"]
    linters = ["ruff check", "ruff format --check", "mypy", "lint-imports"]
    assert log.read_text().splitlines() == [*install, *linters, *install, "python -m pytest"]


def _recorder(path: Path, log: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "$(basename "$0")" "$@" >> "{log}"\n')
    path.chmod(0o755)


def test_ci_says_so_when_the_readme_has_no_test_line(root: Path, tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text((root / ".ci" / "run").read_text())
    (tmp_path / "README.md").write_text("# nothing here\n")
    done = subprocess.run(["/bin/bash", ".ci/run"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "README.md: no line with pytest" in done.stderr


def test_every_direct_dependency_has_a_tested_version(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["test"]
    names = {re.split(r"[><=\[ ]", name)[0].lower() for name in wanted}
    pinned = {
        line.split("==")[0].lower()
        for line in (root / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    }
    assert names - pinned == set()


def test_torch_is_pinned_to_the_tested_build(root: Path) -> None:
    assert "torch==2.13.0" in (root / "constraints.txt").read_text().splitlines()


@pytest.mark.parametrize("package", ["catalog", "planner", "calibrate"])
def test_no_source_file_is_longer_than_400_lines(root: Path, package: str) -> None:
    lengths = {str(path): len(path.read_text().splitlines()) for path in (root / package).rglob("*.py")}
    assert lengths
    assert {path: length for path, length in lengths.items() if length > 400} == {}
