"""A command line as people paste it: continued lines, variables, a launcher, a script and its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from catalog.errors import RigplanError

PYTHON = re.compile(r"(.*/)?python[\d.]*$")
TORCHRUN_MODULES = {"torch.distributed.run", "torch.distributed.launch"}
ACCELERATE_MODULES = {"accelerate.commands.launch"}
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "python", "llamafactory-cli", "axolotl", "trl", "srun", "mpirun")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
_PROMPT = re.compile(r"^\s*(?:[$>%]\s+|!)")
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(slots=True)
class Command:
    """One command: who starts it and with which options, the script (a file or a module), and its options."""

    launcher: str  # torchrun, accelerate, deepspeed, python, llamafactory-cli, axolotl or trl
    launch: dict[str, Any] = field(default_factory=dict)
    script: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)  # what stands among the options without one's name
    environment: dict[str, str] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)  # srun, mpirun, a container and their options


def logical_lines(text: str) -> list[str]:
    """The lines of a shell text, continued ones joined, prompts and comments gone.

    A line of options alone continues the one before it, with or without a backslash.
    """
    joined = re.sub(r"\\[ \t]*\r?\n", " ", text)
    lines = (_PROMPT.sub("", line).strip() for line in joined.splitlines())
    found: list[str] = []
    for line in (line for line in lines if line and not line.startswith("#")):
        if line.startswith("--") and found:
            found[-1] += f" {line}"
        else:
            found.append(line)
    return found


def find_command(text: str, source: str) -> Command:
    """The command that trains: the last line with options, with the variables that the text sets put in.

    Raises RigplanError when there is none or its quotes do not close.
    """
    environment: dict[str, str] = {}
    found: list[str] | None = None
    for line in logical_lines(text):
        words = _words(_expanded(line, environment), source)
        if words[:1] == ["eval"] or "-c" in words[:-1]:  # a command in quotes: eval "$cmd", bash -c "torchrun ..."
            words = [*words[:-1], *_words(words[-1], source)]
        assigned, rest = _assignments(words)
        if not rest:
            environment |= assigned
        elif _trains(rest) or (found is None and any(word.startswith("--") for word in rest)):
            found, environment = rest, environment | assigned
    if found is None:
        raise RigplanError(
            f"{source}: found no command with options; wanted such as: torchrun train.py --bf16 True ..."
        )
    before, words = _unwrapped(found)
    command = _split(words)
    command.environment = environment
    command.before = before
    return command


def _words(line: str, source: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise RigplanError(f"{source}: cannot be read as a command ({error}); check its quotes") from None


def _expanded(word: str, known: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name, otherwise = match[1] or match[3], match[2]
        return known.get(name, match[0] if otherwise is None else otherwise)

    return _VARIABLE.sub(value, word)


def _assignments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    assigned: dict[str, str] = {}
    rest = list(words[1:] if words[:1] == ["export"] else words)
    while rest and (match := _ASSIGNMENT.fullmatch(rest[0])):
        assigned[match[1]] = match[2]
        rest.pop(0)
    return assigned, rest


def _trains(words: Sequence[str]) -> bool:
    return any(word in LAUNCHERS or PYTHON.match(word) for word in words) and len(words) > 1


def _split(words: list[str]) -> Command:
    launcher, rest = words[0].rsplit("/", 1)[-1], words[1:]
    if PYTHON.match(launcher) and rest[:1] == ["-m"] and rest[1:2]:
        module = rest[1]
        if module in TORCHRUN_MODULES:
            launcher, rest = "torchrun", rest[2:]
        elif module in ACCELERATE_MODULES:
            launcher, rest = "accelerate", ["launch", *rest[2:]]
        elif module.split(".")[0] in ("axolotl", "llamafactory"):
            launcher, rest = module.split(".")[0], ["train", *rest[2:]]
        else:
            return Command("python", {}, module, *_options(rest[2:]))
    launcher = {"llamafactory": "llamafactory-cli", "llama-factory-cli": "llamafactory-cli"}.get(launcher, launcher)
    if launcher in ("llamafactory-cli", "axolotl", "trl"):
        return Command(launcher, {}, rest[0] if rest else "", *_options(rest[1:]))
    if launcher in ("torchrun", "accelerate", "deepspeed"):
        rest = rest[1:] if rest[:1] == ["launch"] else rest
        own, script, others = _launch(rest)
        if launcher == "accelerate" and script == "axolotl.cli.train":
            launcher, script = "axolotl", "train"
        return Command(launcher, own, script, *_options(others))
    if PYTHON.match(launcher):
        rest = [word for word in rest if word != "-u"]
        return Command("python", {}, rest[0] if rest and not rest[0].startswith("--") else "", *_options(rest[1:]))
    return Command("python", {}, "", *_options(words))


def _unwrapped(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands before the launcher, and the words from it on."""
    for index, word in enumerate(words):
        name = word.rsplit("/", 1)[-1]
        if (name in LAUNCHERS and name not in ("srun", "mpirun")) or PYTHON.match(word):
            return words[:index], words[index:]
    return [], words


def _launch(words: Sequence[str]) -> tuple[dict[str, Any], str, list[str]]:
    """A launcher's own options, the script it starts, and the script's options."""
    own: dict[str, Any] = {}
    index = 0
    while index < len(words) and words[index].startswith("-"):
        name, equals, value = words[index].lstrip("-").partition("=")
        index += 1
        name = name.replace("-", "_")
        if name in ("m", "module"):
            break
        follows = words[index] if index < len(words) else "-"
        if not equals and not follows.startswith("-") and not follows.endswith(".py"):
            value, equals = follows, "="
            index += 1
        own[name] = value if equals else True
    script = words[index] if index < len(words) else ""
    return own, script, list(words[index + 1 :])


def _options(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Options by name, several values as a list, and the words before the first option."""
    options: dict[str, Any] = {}
    loose: list[str] = []
    values: list[str] | None = None
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            values = [value] if equals else []
            options[name] = value if equals else True
        elif values is None:
            loose.append(word)
        else:
            values.append(word)
            options[name] = values[0] if len(values) == 1 else list(values)
    return options, loose


__all__ = ["Command", "find_command", "logical_lines"]
