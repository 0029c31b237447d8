"""The reference of the spec is what the models say, and docs/spec.md is what the command prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner

from planner.cli import rigplan
from planner.report.reference import page
from planner.spec import Spec


def test_the_page_of_the_docs_is_what_the_command_prints(root: Path) -> None:
    assert (root / "docs" / "spec.md").read_text() == CliRunner().invoke(rigplan, ["spec"]).stdout


def test_every_field_has_a_line_with_its_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*?) ?\| (.*?) ?\|$", page(), re.MULTILINE)
    schema = Spec.model_json_schema()
    parts = [schema, *schema["$defs"].values()]
    assert {name for name, *_ in rows} == {name for part in parts for name in part["properties"]}
    assert [name for name, _, _, meaning in rows if not meaning] == []


def test_what_a_field_takes_is_told_in_the_words_of_the_check() -> None:
    text = page()
    assert "| `memory_limit` | an amount of memory such as 39 GiB; or a list |" in text
    assert "| `task` | `causal-lm` `masked-lm`" in text
    assert "| `count` | a positive number of GPUs; or a list | `1` |" in text
    assert "| `gpu` | the name of a GPU; or a list | required |" in text


def test_json_is_a_schema() -> None:
    schema = json.loads(CliRunner().invoke(rigplan, ["spec", "--json"]).stdout)
    assert schema["required"] == ["model", "hardware"]
    assert schema["additionalProperties"] is False
