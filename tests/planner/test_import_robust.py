"""Whatever stands in a config, an import reads it or says in a line what is wrong: never a traceback."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from catalog.errors import RigplanError
from planner.dialects.document import Document
from planner.dialects.imported import imported
from tests.planner.imports import write_tiny
from tests.planner.test_import_axolotl_llama_factory import AXOLOTL, LLAMA_FACTORY
from tests.planner.test_import_command_line import EXAMPLES
from tests.planner.test_import_deepspeed_accelerate import ACCELERATE, DEEPSPEED
from tests.planner.test_import_sbatch import EXAMPLES as SLURM

JUNK: list[Any] = [None, "x", -1.5, True, ["a", 1], {"a": 1}]
MAPPINGS = {
    **{f"axolotl {name}": ("axolotl", yaml.safe_load(given)) for name, (given, _) in AXOLOTL.items()},
    **{f"llama-factory {name}": ("llama-factory", yaml.safe_load(one[0])) for name, one in LLAMA_FACTORY.items()},
    **{f"accelerate {name}": ("accelerate", yaml.safe_load(given)) for name, (given, _) in ACCELERATE.items()},
    **{f"deepspeed {name}": ("deepspeed", json.loads(one[0])) for name, one in DEEPSPEED.items()},
}
TEXTS = {**{name: one[0] for name, one in EXAMPLES.items()}, **{name: one[0] for name, one in SLURM.items()}}
GIVEN = {"model.name": "pythia-14m", "hardware.gpu": "a100-sxm4-80gb"}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)


def places(mapping: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in mapping.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from places(value, (*above, key))


def changed(mapping: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    found = copy.deepcopy(mapping)
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return found


def reads_or_tells(document: Document, dialect: str) -> None:
    with suppress(RigplanError):
        found = imported([document], dialect=dialect, given=GIVEN)
        assert yaml.safe_load(found.text()) == found.spec


@pytest.mark.parametrize("name", MAPPINGS)
def test_any_value_in_any_place_is_read_or_told(name: str) -> None:
    dialect, mapping = MAPPINGS[name]
    for place in places(mapping):
        for value in JUNK:
            reads_or_tells(Document(name, "", Path(), changed(mapping, place, value)), dialect)


@pytest.mark.parametrize("name", TEXTS)
def test_any_beginning_of_a_text_is_read_or_told(name: str) -> None:
    text = TEXTS[name]
    text = text if isinstance(text, str) else next(iter(text.values()))
    dialect = "sbatch" if name in SLURM else "training-arguments"
    for end in range(0, len(text), 23):
        reads_or_tells(Document(name, text[:end], Path()), dialect)
