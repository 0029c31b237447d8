"""A Slurm batch script: its header says the GPUs, and the command inside it the rest."""

from __future__ import annotations

import re
import shlex

from catalog import store
from catalog.errors import RigplanError
from planner.dialects.command_line import find_command
from planner.dialects.document import Document
from planner.dialects.launcher import say_gpus
from planner.dialects.reading import Options, Reading, as_flag, bearing_nothing
from planner.dialects.training_arguments import read_command

SHORT = {
    "N": "nodes",
    "n": "ntasks",
    "G": "gpus",
    "C": "constraint",
    "c": "cpus_per_task",
    "t": "time",
    "p": "partition",
    "J": "job_name",
    "o": "output",
    "e": "error",
    "A": "account",
    "q": "qos",
    "w": "nodelist",
    "x": "exclude",
}
LONG_OPTION = re.compile(r"(^|\s)--\w")


def looks_so(document: Document) -> bool:
    """A text with a line of Slurm's."""
    return bool(re.search(r"^\s*#SBATCH\s", document.text, re.MULTILINE))


def read(document: Document) -> Reading:
    """Say what the header says, and read the command below it where there is one."""
    options = Options(_header(document), document.source, as_flag)
    nodes, tasks = options.whole("nodes"), options.whole("ntasks_per_node")
    all_tasks = options.whole("ntasks")
    if tasks is None and all_tasks is not None:
        tasks = all_tasks // (nodes or 1)
    kind, each, total = _gpus(options, tasks or 1)
    body = "\n".join(line for line in document.text.splitlines() if not line.lstrip().startswith("#"))
    told = {
        "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_GPUS_ON_NODE": each, "SLURM_GPUS_PER_NODE": each,
        "SLURM_NTASKS_PER_NODE": tasks, "SLURM_NTASKS": all_tasks or (tasks or 1) * (nodes or 1),
    }  # fmt: skip
    known = "".join(f"{name}={value}\n" for name, value in told.items() if value is not None)
    if LONG_OPTION.search(body):
        reading = read_command(find_command(known + body, document.source), document)
    else:
        reading = Reading(document.source)
    if "hardware.count" not in reading.fields:
        if each is None and total is None and tasks:
            reading.assume(f"one GPU for each of the {tasks} tasks of a node: the header names none")
            each = tasks
        say_gpus(reading, nodes, each, total)
    elif nodes and nodes > 1 and reading.fields["hardware.count"] % nodes == 0:
        reading.say("hardware.gpus_per_node", reading.fields["hardware.count"] // nodes)
    for name in (kind, options.take("constraint")):
        if name and "hardware.gpu" not in reading.fields:
            _gpu(reading, str(name))
    options.finish(reading, bearing_nothing("sbatch"))
    return reading


def _header(document: Document) -> dict[str, str | bool]:
    found: dict[str, str | bool] = {}
    for line in document.text.splitlines():
        match = re.match(r"\s*#SBATCH\s+(.*)", line)
        words = shlex.split(match[1], comments=True) if match else []
        while words:
            word = words.pop(0)
            if word.startswith("--"):
                name, equals, value = word[2:].partition("=")
            elif word.startswith("-"):
                name, equals, value = SHORT.get(word[1:2], word[1:2]), word[2:], word[2:].lstrip("=")
            else:
                continue
            if not equals and words and not words[0].startswith("-"):
                value, equals = words.pop(0), "="
            found[name.replace("-", "_")] = value if equals else True
    return found


def _gpus(options: Options, tasks: int) -> tuple[str, int | None, int | None]:
    """The kind of GPU, how many of them in a node, how many in all: "gpu:a100:4", "a100:4" or "4"."""
    kind = ""
    counts: dict[str, int | None] = dict.fromkeys(("gres", "gpus_per_node", "gpus_per_task", "gpus"))
    for name in counts:
        value = options.take(name)
        for part in str(value or "").split(","):
            if name == "gres" and not part.startswith("gpu"):
                continue
            parts = [piece for piece in part.split("(")[0].split(":") if piece and piece != "gpu"]
            if not parts and name == "gres":
                parts = ["1"]
            if parts and parts[-1].isdigit():
                counts[name] = int(parts.pop())
            elif parts:
                counts[name] = 1
            kind = kind or ":".join(parts)
    of_tasks = counts["gpus_per_task"] and counts["gpus_per_task"] * tasks
    return kind, counts["gres"] or counts["gpus_per_node"] or of_tasks, counts["gpus"]


def _gpu(reading: Reading, name: str) -> None:
    try:
        reading.say("hardware.gpu", store.find(name).name)
        reading.assume(f"gpu {reading.fields['hardware.gpu']} for Slurm's {name}")
    except RigplanError as error:
        reading.unsure["hardware.gpu"] = f"the header's GPU: {error} Add --gpu NAME."


__all__ = ["looks_so", "read"]
