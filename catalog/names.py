"""Which device a written name means. Words, not prefixes: "H20" must never find an H200, nor "L40" an L40S."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from catalog.errors import RigplanError, did_you_mean, shown

_BRANDS = frozenset({"rtx"})
_LISTED_AT_MOST = 8


@dataclass(frozen=True, slots=True)
class Match:
    """The canonical name a spelling stands for, and the assumption made where the spelling left something open."""

    name: str
    assumption: str = ""


@dataclass(frozen=True, slots=True)
class Names:
    """The vocabulary of the catalog: canonical name -> the words that describe it."""

    words: Mapping[str, frozenset[str]]
    noise: frozenset[str]
    same_word: Mapping[str, str]
    chosen: Mapping[str, Match]
    examples: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = field(default=())

    @staticmethod
    def build(canonical: Iterable[str], table: Mapping[str, Any]) -> Names:
        """From the canonical names and the table of ``data/names.yaml``."""
        same, noise = dict(table["same_word"]), frozenset(str(word) for word in table["noise"])
        words: dict[str, frozenset[str]] = {}
        for name in canonical:
            own = [*name.split("-"), *table["extra_words"].get(name, ())]
            words[name] = frozenset(same.get(word, word) for word in map(str, own)) - noise
        spoken = set(noise) | set(same) | {word for group in words.values() for word in group}
        chosen = {str(key): Match(value["name"], value["why"]) for key, value in table["chosen"].items()}
        return Names(words, noise, same, chosen, tuple(table["examples"]), tuple(sorted(spoken, key=len, reverse=True)))

    def lookup(self, text: str) -> Match | tuple[str, ...]:
        """The device ``text`` means, or every device it could mean (none when it is unknown)."""
        if text.lower() in self.words:
            return Match(text.lower())
        said = self._cut(_squeeze(text)) or []
        key = "".join(self.same_word.get(word, word) for word in said if word not in self.noise)
        if key in self.chosen:
            return self.chosen[key]
        wanted = {self.same_word.get(word, word) for word in said} - self.noise
        found = tuple(name for name, words in self.words.items() if wanted and wanted <= words)
        exact = [name for name in found if len(found) == 1 or self._model(name) <= wanted]
        return Match(exact[0]) if len(exact) == 1 else found

    def find(self, text: str) -> Match:
        """The device ``text`` means. Raises RigplanError when it means several, or none (with "did you mean")."""
        found = self.lookup(text)
        if isinstance(found, Match):
            return found
        if found:
            raise RigplanError(f"{shown(text)} could be {_listed(found)}: write which one.")
        hint = did_you_mean(_squeeze(text), self._spellings())
        like = f" Names look like {' or '.join(self.examples)}; `rigplan gpus` lists all."
        raise RigplanError(f"Unknown accelerator {shown(text)}.{hint or like}")

    def _spellings(self) -> dict[str, str]:
        """What a near miss is compared with: whole names, names without their brand, and models (`h100`), which are
        themselves the answer where several devices are of that model."""
        parts = {name: [part for part in name.split("-") if part not in _BRANDS] for name in self.words}
        models: dict[str, str] = {}
        for name, (model, *_) in parts.items():
            models[model] = model if model in models else name
        short = {"".join(words): name for name, words in parts.items()}
        return models | short | {_squeeze(name): name for name in self.words}

    def _model(self, name: str) -> set[str]:
        """The words of the canonical name itself: "4070 ti" is the 4070 Ti although the 4070 Ti SUPER holds both."""
        return {self.same_word.get(word, word) for word in name.split("-")} - self.noise - _BRANDS

    def _cut(self, squeezed: str) -> list[str] | None:
        """``squeezed`` cut into known words, the longest first at each place; None when something is left over."""
        if not squeezed:
            return []
        for word in self.vocabulary:
            if squeezed.startswith(word):
                rest = self._cut(squeezed[len(word) :])
                if rest is not None:
                    return [word, *rest]
        return None


def _squeeze(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _listed(names: tuple[str, ...]) -> str:
    if len(names) > _LISTED_AT_MOST:
        return f"{', '.join(names[:_LISTED_AT_MOST])} and {len(names) - _LISTED_AT_MOST} more"
    return f"{', '.join(names[:-1])} or {names[-1]}"
