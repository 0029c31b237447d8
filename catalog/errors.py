"""The one exception a user's mistake may raise, everywhere in the project."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class RigplanError(Exception):
    """A mistake of the user, told in one line: what was found, what was wanted, what to do. Never a traceback."""


def unreadable(error: Exception) -> str:
    """Why a file cannot be read, without the words of the program."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return (isinstance(error, OSError) and error.strerror) or str(error)


def shown(text: str, most: int = 60) -> str:
    """What was found, in quotes, cut where it is long."""
    return repr(text if len(text) <= most else f"{text[: most - 3]}...")


def did_you_mean(name: str, choices: Iterable[str] | Mapping[str, str], limit: int = 3) -> str:
    """A question to append to an error, such as ``Did you mean rtx-3090?``; empty when nothing is near.

    ``choices`` are the right words, or a mapping of spellings to the right words.
    """
    pairs = choices.items() if isinstance(choices, Mapping) else ((choice, choice) for choice in choices)
    known = {spelling.lower(): choice for spelling, choice in pairs}
    near = difflib.get_close_matches(name.lower(), known, n=limit, cutoff=0.5)
    meant = list(dict.fromkeys(known[spelling] for spelling in near))
    return f" Did you mean {' or '.join(meant)}?" if meant else ""
