"""Imports for tests: files written to a folder with a tiny model, read into a spec, and compared with one by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import planner
from planner.answer import Estimate
from planner.dialects.document import Document
from planner.dialects.imported import Imported, imported

TINY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 1000,
    "max_position_embeddings": 2048,
}  # fmt: skip
FILE = "given.txt"


def write_tiny(folder: Path) -> None:
    """A tiny Llama as a folder that scripts would be pointed at."""
    (folder / "tiny").mkdir()
    (folder / "tiny" / "config.json").write_text(json.dumps(TINY))


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Imported]:
    """Read a text, or several files by their names, as `rigplan import` does, beside a model in the folder `tiny`."""
    write_tiny(tmp_path)
    monkeypatch.chdir(tmp_path)

    def reads(given: str | Mapping[str, str], *, only: tuple[str, ...] = (), **options: Any) -> Imported:
        files = {FILE: given} if isinstance(given, str) else given
        for name, text in files.items():
            Path(name).write_text(text)
        documents = [Document.load(name) for name in only or tuple(files)]
        return imported(documents, given={key.replace("__", "."): value for key, value in options.items()})

    return reads


def answers_alike(found: Imported, by_hand: str) -> None:
    """The imported spec and the one by hand, each as its text has it, give the same estimate to the last byte."""
    answers = [planner.estimate(yaml.safe_load(text)) for text in (found.text(), by_hand)]
    assert all(isinstance(answer, Estimate) for answer in answers)
    assert answers[0].model_dump() == answers[1].model_dump()


__all__ = ["FILE", "TINY", "answers_alike", "read", "write_tiny"]
