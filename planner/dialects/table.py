"""The dialects: who reads each, who writes it, and how a file of it is recognised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from catalog.errors import RigplanError
from planner.dialects import (
    accelerate,
    accelerate_yaml,
    axolotl,
    deepspeed,
    deepspeed_json,
    fsdp_config,
    llama_factory,
    sbatch,
    torchtitan,
    training_arguments,
    writers,
)
from planner.dialects.document import Document
from planner.dialects.option import Option, Written
from planner.dialects.reading import Reading

Read = Callable[[Document], Reading]
Write = Callable[[Option], Written]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One dialect. `looks_so` is None where a file of it is never given alone, `read` where nothing is read from it."""

    looks_so: Callable[[Document], bool] | None = None
    read: Read | None = None
    write: Write | None = None

    @property
    def reader(self) -> Read:
        """The function that reads it. Raises RigplanError where there is none."""
        if self.read is None:
            raise RigplanError("this dialect is written and not read; `rigplan import --help` lists those that are")
        return self.read

    @property
    def writer(self) -> Write:
        """The function that writes it. Raises RigplanError where there is none."""
        if self.write is None:
            raise RigplanError("this dialect is read and not written; `rigplan export --help` lists those that are")
        return self.write


# In the order in which a file is tried: the more telling marks first
DIALECTS: Mapping[str, Dialect] = {
    "sbatch": Dialect(sbatch.looks_so, sbatch.read, writers.sbatch),
    "accelerate": Dialect(accelerate.looks_so, accelerate.read, accelerate_yaml.write),
    "deepspeed": Dialect(deepspeed.looks_so, deepspeed.read, deepspeed_json.write),
    "axolotl": Dialect(axolotl.looks_so, axolotl.read),
    "llama-factory": Dialect(llama_factory.looks_so, llama_factory.read),
    "training-arguments": Dialect(training_arguments.looks_so, training_arguments.read, writers.training_arguments),
    "fsdp-config": Dialect(None, fsdp_config.read),
    "torchrun": Dialect(write=writers.torchrun),
    "torchtitan": Dialect(write=torchtitan.write),
}
# Whose word counts where two files differ
READ_FIRST = ("training-arguments", "sbatch", "llama-factory", "axolotl", "deepspeed", "fsdp-config", "accelerate")

__all__ = ["DIALECTS", "READ_FIRST", "Dialect"]
