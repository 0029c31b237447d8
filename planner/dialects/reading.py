"""What a config of another tool says, in the words of a spec, and what else was in it: nothing is dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from catalog.errors import RigplanError

Shown = Callable[[str, Any], str]
TRUE, FALSE = {"true", "yes", "1", "on"}, {"false", "no", "0", "off", "none", "null", ""}


@cache
def bearing_nothing(*whose: str) -> frozenset[str]:
    """Options that change neither the memory nor the time of a step, of these parts of bearing_nothing.yaml."""
    text = (files("planner") / "dialects" / "bearing_nothing.yaml").read_text(encoding="utf-8")
    lists: dict[str, str] = yaml.safe_load(text)
    return frozenset(name for part in whose for name in lists[part].split())


def as_yaml(name: str, value: Any) -> str:
    """An option as a YAML file has it."""
    return f"{name}: {value}"


def as_flag(name: str, value: Any) -> str:
    """An option as a command line has it."""
    return f"--{name}" if value is True else f"--{name} {value}"


@dataclass(slots=True)
class Reading:
    """One config: fields of a spec by their place ("training.micro_batch"), and in words what they do not hold.

    `defaults` are what the tool does where nothing says otherwise, with the reason; another file may say otherwise.
    `unsure` are fields that the config gives in words nobody can read, with what to do if nothing else gives them.
    `companions` are files that this one names and that belong to it, each with the dialect it is in.
    """

    source: str
    fields: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, tuple[Any, str]] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    not_understood: list[str] = field(default_factory=list)
    without_bearing: list[str] = field(default_factory=list)
    unsure: dict[str, str] = field(default_factory=dict)
    companions: list[tuple[str, str]] = field(default_factory=list)

    def say(self, place: str, value: Any) -> None:
        """The config gives this field of a spec; None says nothing."""
        if value is not None:
            self.fields[place] = value

    def default(self, place: str, value: Any, why: str) -> None:
        """The tool takes this value where no config says another."""
        self.defaults[place] = (value, why)

    def assume(self, words: str) -> None:
        """Something a spec cannot hold as it is, and what is taken in its place."""
        self.assumed.append(words)


class Options:
    """The options of a config by name. Each is taken by whoever understands it; what is left is told."""

    def __init__(self, given: Mapping[str, Any], source: str, shown: Shown = as_yaml) -> None:
        self.given = dict(given)
        self.source = source
        self.shown = shown
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def take(self, *names: str) -> Any:
        """The value of the first of these options that is given; None when none is. All count as understood."""
        self._taken.update(names)
        return next((self.given[name] for name in names if self.given.get(name) is not None), None)

    def flag(self, *names: str) -> bool | None:
        """A yes-or-no option; None when it is not given. Raises RigplanError for anything else."""
        value = self.take(*names)
        if value is None or isinstance(value, bool):
            return value
        word = str(value).strip().lower()
        if word in TRUE | FALSE:
            return word in TRUE
        raise self.mistake(names, value, "true or false")

    def whole(self, *names: str) -> int | None:
        """A whole number; None when it is not given. Raises RigplanError for anything else."""
        number = self.number(*names, wanted="a whole number")
        if number is not None and number != int(number):
            raise self.mistake(names, number, "a whole number")
        return None if number is None else int(number)

    def number(self, *names: str, wanted: str = "a number") -> float | None:
        """A number; None when it is not given. Raises RigplanError for anything else."""
        value = self.take(*names)
        if value is None:
            return None
        try:
            if isinstance(value, bool):
                raise ValueError(value)
            return float(value)
        except (TypeError, ValueError):
            raise self.mistake(names, value, wanted) from None

    def words(self, *names: str) -> list[str] | None:
        """A list of words: given as a list, or in one string between commas or blanks."""
        value = self.take(*names)
        if value is None:
            return None
        return [str(item) for item in value] if isinstance(value, list) else str(value).replace(",", " ").split()

    def part(self, *names: str) -> dict[str, Any]:
        """Options inside an option; none when it is not given. Raises RigplanError for what is no mapping."""
        value = self.take(*names)
        if not isinstance(value, Mapping | None):
            raise self.mistake(names, value, "a mapping")
        return {str(key): inner for key, inner in (value or {}).items()}

    def mistake(self, names: Iterable[str], value: Any, wanted: str) -> RigplanError:
        """An option whose value cannot be read."""
        name = next((name for name in names if name in self.given), next(iter(names)))
        return RigplanError(f"{self.source}: {self.shown(name, value)!r}: found {str(value)!r}, wanted {wanted}")

    def finish(self, reading: Reading, without_bearing: frozenset[str]) -> None:
        """Tell what nobody took: options that change neither memory nor time, and those that are not understood."""
        for name, value in self.given.items():
            if name in self._taken:
                continue
            if name in without_bearing:
                reading.without_bearing.append(name)
            else:
                reading.not_understood.append(self.shown(name, value))


__all__ = ["Options", "Reading", "as_flag", "as_yaml", "bearing_nothing"]
