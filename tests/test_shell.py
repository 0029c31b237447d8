"""The lines of docs/shell.md that make a shell complete `rigplan`, run as they stand by the shells themselves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# How each shell, begun anew, is asked for what completes `rigplan gpus h100-n`.
ASKED = {
    "bash": """
        . ~/.bashrc
        COMP_WORDS=(rigplan gpus h100-n); COMP_CWORD=2
        $(complete -p rigplan | sed 's/.*-F \\([^ ]*\\) .*/\\1/') rigplan
        printf '%s\\n' "${COMPREPLY[@]}"
    """,
    "zsh": '. ~/.zshrc; (( $+_comps[rigplan] )) && COMP_WORDS="rigplan gpus h100-n" COMP_CWORD=2 '
    "_RIGPLAN_COMPLETE=zsh_complete rigplan",
    "fish": "complete -C 'rigplan gpus h100-n'",
}


def line(shell: str) -> str:
    """The documented line of a shell."""
    (found,) = re.findall(
        rf"^.*_RIGPLAN_COMPLETE={shell}_source .*$", (ROOT / "docs/shell.md").read_text(), re.MULTILINE
    )
    return str(found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_as_the_docs_have_it(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = tmp_path / "bin" / "rigplan"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom planner.cli import main\nmain()\n")
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"HOME": str(tmp_path), "PATH": path, "PYTHONPATH": str(ROOT)}
    environment.pop("XDG_CONFIG_HOME", None)
    for text in (line(shell), ASKED[shell]):
        done = subprocess.run([shell, "-c", text], env=environment, capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
    assert "h100-nvl-94gb" in done.stdout.split()
