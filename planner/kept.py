"""Kept: answers remembered on disk, so that a question asked again costs no replay, no pricing and no heavy import.

An answer is kept under everything it follows from: the model and its files, the data, the strategy and machine, the
profile, the library versions, and the program and catalog themselves as they lie on disk.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from dataclasses import asdict
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from planner.answer import Estimate
from planner.cache import contents, folder, made_by
from planner.question import How
from planner.spec import Spec
from planner.strategy import HardwareChoice, Strategy

MOST = 200_000  # answers in a file before it is begun anew: some 400 MB
BUSY_SECONDS = 5.0  # how long to wait for another process that writes

TABLE = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, outcome TEXT NOT NULL)"


class Kept:
    """The answers to one model and its data, read as they are asked for; `save` writes what was added.

    A file that cannot be read or written costs time, never the answer.
    """

    def __init__(self, spec: Spec, profile: str = "") -> None:
        asked = {
            "model": spec.model.model_dump(mode="json", exclude={"attention"}),
            "contents": contents(spec.model),
            "data": spec.data.model_dump(mode="json"),
            "profile": _text(profile),
            "made_by": made_by(spec.model),
            "program": _program(),
        }
        self.path = folder() / f"answers-{_digest(asked)}.sqlite"
        self._new: dict[str, str] = {}
        self._known = self._opened() if self.path.is_file() else None

    def get(self, strategy: Strategy, choice: HardwareChoice, how: How) -> Estimate | str | None:
        """A known outcome (an estimate or a reason); None when it is not known."""
        if self._known is None:
            return None
        try:
            row = self._known.execute("SELECT outcome FROM answers WHERE key = ?", (_key(strategy, choice, how),))
            found = row.fetchone()
            if found is None:
                return None
            text: str = found[0]
            return Estimate.model_validate_json(text) if text.startswith("{") else str(json.loads(text))
        except (sqlite3.Error, ValueError):
            return None

    def put(self, strategy: Strategy, choice: HardwareChoice, outcome: Estimate | str, how: How) -> None:
        """Remember an outcome."""
        text = json.dumps(str(outcome)) if isinstance(outcome, str) else outcome.model_dump_json()
        self._new[_key(strategy, choice, how)] = text

    def save(self) -> None:
        """Write what is new beside what others wrote meanwhile."""
        if not self._new:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._opened()) as answers, answers:
                answers.execute(TABLE)
                if answers.execute("SELECT count(*) FROM answers").fetchone()[0] > MOST:
                    answers.execute("DELETE FROM answers")
                answers.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", self._new.items())
        except (OSError, sqlite3.Error):
            return
        self._new = {}

    def close(self) -> None:
        """Leave the file to others."""
        if self._known is not None:
            self._known.close()

    def _opened(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=BUSY_SECONDS)


def _key(strategy: Strategy, choice: HardwareChoice, how: How) -> str:
    own = _text(choice.gpu) if "." in choice.gpu else ""  # a file, perhaps
    asked = "\n".join((_plain(strategy), _plain(choice), own, _plain(how)))
    return hashlib.sha256(asked.encode()).hexdigest()[:32]


@lru_cache(maxsize=4096)
def _plain(part: Strategy | HardwareChoice | How) -> str:
    """A part of a question as text; a plan asks thousands made of the same few."""
    return json.dumps(asdict(part), sort_keys=True, default=str)


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
