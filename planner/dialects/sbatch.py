"""A Slurm batch script: its header says the GPUs, and the command inside it the rest."""

from __future__ import annotations

import re
import shlex

from planner.dialects.command_line import find_command
from planner.dialects.document import Document
from planner.dialects.reading import Options, Reading, as_flag, bearing_nothing
from planner.dialects.slurm import Allocation, flags
from planner.dialects.training_arguments import read_command

HEADER = re.compile(r"^\s*#SBATCH\s+(.*)", re.MULTILINE)
LONG_OPTION = re.compile(r"(^|\s)--\w")


def looks_so(document: Document) -> bool:
    """A text with a line of Slurm's."""
    return bool(HEADER.search(document.text))


def read(document: Document) -> Reading:
    """Say what the header says, and read the command below it where there is one."""
    words = [word for line in HEADER.findall(document.text) for word in shlex.split(line, comments=True)]
    options = Options(flags(words), document.source, as_flag)
    asked = Allocation.of(options)
    body = "\n".join(line for line in document.text.splitlines() if not line.lstrip().startswith("#"))
    known = "".join(f"{name}={value}\n" for name, value in asked.variables().items())
    if LONG_OPTION.search(body):
        reading = read_command(find_command(known + body, document.source), document)
    else:
        reading = Reading(document.source)
    asked.say(reading)
    options.finish(reading, bearing_nothing("sbatch"))
    return reading


__all__ = ["looks_so", "read"]
