"""What Slurm's options say of the hardware, in a batch script's header or after srun."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from catalog import store
from catalog.errors import RigplanError
from planner.dialects.launcher import say_gpus
from planner.dialects.reading import Options, Reading

SHORT: Mapping[str, str] = {
    "N": "nodes", "n": "ntasks", "G": "gpus", "C": "constraint", "c": "cpus_per_task", "t": "time", "p": "partition",
    "J": "job_name", "o": "output", "e": "error", "A": "account", "q": "qos", "w": "nodelist", "x": "exclude",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Allocation:
    """What is asked of Slurm: GPUs of a node or in all, and the words that may name their kind."""

    nodes: int | None
    tasks: int | None  # of a node
    gpus_per_node: int | None
    gpus: int | None
    kind: str
    constraint: str

    @classmethod
    def of(cls, options: Options) -> Allocation:
        """Raises RigplanError for a number that is none."""
        nodes, tasks, all_tasks = (options.whole(name) for name in ("nodes", "ntasks_per_node", "ntasks"))
        if tasks is None and all_tasks is not None:
            tasks = max(1, all_tasks // (nodes or 1))
        kinds, counts = [], {}
        for name in ("gres", "gpus_per_node", "gpus_per_task", "gpus"):
            kind, counts[name] = _gpus(options.take(name))
            kinds.append(kind)
        of_tasks = counts["gpus_per_task"] and counts["gpus_per_task"] * (tasks or 1)
        return cls(
            nodes,
            tasks,
            counts["gres"] or counts["gpus_per_node"] or of_tasks,
            counts["gpus"],
            next((kind for kind in kinds if kind), ""),
            str(options.take("constraint") or ""),
        )

    def variables(self) -> dict[str, int]:
        """The variables that Slurm sets for the command inside."""
        found = {
            "SLURM_NNODES": self.nodes or 1,
            "SLURM_JOB_NUM_NODES": self.nodes or 1,
            "SLURM_NTASKS": (self.tasks or 1) * (self.nodes or 1),
            "SLURM_NTASKS_PER_NODE": self.tasks,
            "SLURM_GPUS_ON_NODE": self.gpus_per_node or self.gpus,
            "SLURM_GPUS_PER_NODE": self.gpus_per_node,
        }
        return {name: value for name, value in found.items() if value is not None}

    def say(self, reading: Reading) -> None:
        """Say how many GPUs, where the command has not, and their kind."""
        count = reading.fields.get("hardware.count")
        if count is None:
            each = self.gpus_per_node
            if each is None and self.gpus is None and self.tasks:
                reading.assume(f"one GPU for each of the {self.tasks} tasks of a node: Slurm is asked for none")
                each = self.tasks
            say_gpus(reading, self.nodes, each, self.gpus)
        elif self.nodes and self.nodes > 1 and count % self.nodes == 0:
            reading.say("hardware.gpus_per_node", count // self.nodes)
        if self.kind:
            try:
                _say_gpu(reading, self.kind)
            except RigplanError as error:
                reading.unsure["hardware.gpu"] = f"Slurm's GPU: {error} Add --gpu NAME."
        for word in re.split(r"[&|,]", self.constraint):
            if word and "hardware.gpu" not in reading.fields and store.lookup(word) is not None:
                _say_gpu(reading, word)


def flags(words: Sequence[str]) -> dict[str, str | bool]:
    """Slurm's options by their long names."""
    found: dict[str, str | bool] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1:
            name, equals, value = SHORT.get(word[1], word[1]), word[2:], word[2:].lstrip("=")
        else:
            continue
        if not equals and rest and not rest[0].startswith("-"):
            value, equals = rest.pop(0), "="
        found[name.replace("-", "_")] = value if equals else True
    return found


def _gpus(value: object) -> tuple[str, int | None]:
    """The kind and the number in "gpu:a100:4", "a100:4", "gpu" or "4"; other resources are passed over."""
    for part in str(value or "").split(","):
        pieces = [piece for piece in part.split("(")[0].removeprefix("gres/").split(":") if piece]
        if not pieces or (len(pieces) > 1 and pieces[0] in ("shard", "mps", "license", "tmpfs", "nvme", "craynetwork")):
            continue
        number = int(pieces.pop()) if pieces[-1].isdigit() else 1
        return ":".join(piece for piece in pieces if piece != "gpu"), number
    return "", None


def _say_gpu(reading: Reading, name: str) -> None:
    reading.say("hardware.gpu", store.find(name).name)
    reading.assume(f"gpu {reading.fields['hardware.gpu']} for Slurm's {name}")


__all__ = ["Allocation", "flags"]
