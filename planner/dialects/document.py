"""A file to import: its text, where it lies, and the mapping it holds when it is YAML or JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from catalog.errors import RigplanError

NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class Document:
    """`mapping` is None for text that is neither YAML nor JSON: a command line or a script."""

    source: str
    text: str
    folder: Path
    mapping: Mapping[str, Any] | None = None

    @classmethod
    def load(cls, path: str) -> Document:
        """Read a file, or standard input for "-". Raises RigplanError when it cannot be read or is empty."""
        source = "standard input" if path == "-" else path
        try:
            text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            raise RigplanError(
                f"{source}: no such file; wanted a config or a command line, or - for standard input"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise RigplanError(f"{source}: cannot be read ({reason}); wanted a config or a command line") from None
        return cls.of(text, source, Path() if path == "-" else Path(path).parent)

    @classmethod
    def of(cls, text: str, source: str, folder: Path) -> Document:
        """A text with the mapping it holds, if any."""
        if not text.strip():
            raise RigplanError(f"{source}: is empty; wanted a config or a command line")
        return cls(source, text, folder, _mapping(text, source))

    def beside(self, name: str) -> Path | None:
        """A file that this one names: in its folder, or in the working directory; None when it is in neither."""
        return next((path for path in (self.folder / name, Path(name)) if path.is_file()), None)


def _mapping(text: str, source: str) -> Mapping[str, Any] | None:
    try:
        found = yaml.safe_load(text)  # JSON is YAML too, but for tabs and a few numbers
    except (yaml.YAMLError, ValueError, RecursionError):
        found = None
    if text.lstrip().startswith("{") and '"' in text:
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            if found is None:
                raise RigplanError(f"{source}: line {error.lineno} is not JSON ({error.msg})") from None
        except RecursionError:
            raise RigplanError(f"{source}: is nested too deeply; wanted a config") from None
    names = found if isinstance(found, dict) else {}
    # a command with a colon in it is a mapping for YAML too, but its key is no name
    return found if names and all(isinstance(key, str) and NAME.fullmatch(key) for key in names) else None


__all__ = ["Document"]
