"""Kept: answers remembered on disk, so that a question asked again costs no replay, no pricing and no heavy import.

An answer is kept under everything it follows from: the model and its files, the data, the strategy and machine, the
profile, the library versions, and the program and catalog themselves as they lie on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from planner.answer import Estimate
from planner.cache import contents, folder, made_by
from planner.question import How
from planner.spec import Spec
from planner.strategy import HardwareChoice, Strategy

MOST = 4096  # answers in a file before it is begun anew


class Kept:
    """The answers to one model and its data; `save` writes what was added."""

    def __init__(self, spec: Spec, profile: str = "") -> None:
        asked = {
            "model": spec.model.model_dump(mode="json", exclude={"attention"}),
            "contents": contents(spec.model),
            "data": spec.data.model_dump(mode="json"),
            "profile": _text(profile),
            "made_by": made_by(),
            "program": _program(),
        }
        self.path = folder() / f"answers-{_digest(asked)}.json"
        self._answers = self._load()
        self._new: dict[str, Any] = {}

    def get(self, strategy: Strategy, choice: HardwareChoice, how: How) -> Estimate | str | None:
        """A known outcome (an estimate or a reason); None when it is not known."""
        found = self._answers.get(self._key(strategy, choice, how))
        return Estimate.model_validate(found) if isinstance(found, dict) else found

    def put(self, strategy: Strategy, choice: HardwareChoice, outcome: Estimate | str, how: How) -> None:
        """Remember an outcome."""
        plain = outcome if isinstance(outcome, str) else outcome.model_dump(mode="json")
        key = self._key(strategy, choice, how)
        self._answers[key] = self._new[key] = plain

    def save(self) -> None:
        """Write what is new beside what others wrote meanwhile; a folder that cannot be written to costs only time."""
        if not self._new:
            return
        together = self._load() | self._new
        if len(together) > MOST:
            together = self._new
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False, encoding="utf-8") as file:
                json.dump(together, file)
            os.replace(file.name, self.path)
        except OSError:
            return
        self._new = {}

    def _load(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _key(self, strategy: Strategy, choice: HardwareChoice, how: How) -> str:
        own = _text(choice.gpu) if Path(choice.gpu).suffix else ""
        return _digest([asdict(strategy), asdict(choice), own, asdict(how)])


def _digest(asked: Any) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _text(path: str) -> str:
    """The contents of a file that a name may stand for."""
    try:
        return hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest() if path else ""
    except OSError:
        return path


@cache
def _program() -> str:
    """The program and the catalog's data as they are: paths, sizes and times of change."""
    here = Path(__file__).resolve().parent
    files = sorted(path for top in (here, here.parent / "catalog") for path in top.rglob("*") if path.suffix != ".pyc")
    stats = [(str(path.relative_to(here.parent)), path.stat()) for path in files if path.is_file()]
    return _digest([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])


__all__ = ["Kept"]
