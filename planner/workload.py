"""Workload: one training step of one rank, as recorded: calls in order, and the birth and death of every tensor.

It is plain data. Everything that a number depends on later (seconds, bytes) is a function of it and of a machine.
Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from planner.call import ITEM_BYTES, Call

Integers = npt.NDArray[np.int64]

# What an event says; the meaning of its value is in brackets.
CALL, ALLOCATE, FREE, GRADIENT, PHASE = range(5)  # [call], [block], [block], [parameter is ready], [phase]
MODULE = 6  # [module]: what follows is its work; 5 is collectives.WAIT
COMPILED = 7  # [BY_PROGRAM, BY_CPP, BY_PART: who issues what follows; 0: eager code again]
BY_PROGRAM, BY_CPP = 1, 2  # a compiled program; torch's own C++ code, as DDP's reducer, without Python or dispatch
BY_PART = 3  # a compiled program that is one of those that a model was cut into on purpose
PHASES = ("load", "forward", "backward", "optimizer", "evaluation")
CATEGORIES = (
    "weights", "buffers", "inputs", "gradients", "optimizer", "casts", "activations", "logits", "temporary",
    "workspace",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    dtype: str
    shape: tuple[int, ...]
    trainable: bool
    block: int
    gradient_block: int | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Events:
    """A stretch of the step. `views` counts, for each event, the view operators dispatched just before it."""

    codes: Integers
    values: Integers
    views: Integers

    def __len__(self) -> int:
        return len(self.codes)

    def same_as(self, other: Events) -> bool:
        return np.array_equal(self.codes, other.codes) and np.array_equal(self.values, other.values)


@dataclass(frozen=True, slots=True)
class Workload:
    """`segments`: load, micro_step, optimizer_first (states are born), optimizer (every later step) and, where it was
    traced, evaluation (a forward without gradients, its results kept).

    `settle`, where it is, is played once, after the first step (DDP's buckets are made anew).

    `calls[i]` is the i-th kernel launch kind; block sizes are in bytes, unrounded. A segment begins in module 0, the
    model itself.
    """

    micro_batch: int
    calls: tuple[Call, ...]
    segments: Mapping[str, Events]
    block_bytes: Integers
    block_categories: Integers
    parameters: tuple[Parameter, ...]
    samples_to_tokens: int
    family: str
    task: str
    assumptions: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    host_bytes: int = 0  # what lies in host memory instead of on the GPU
    modules: tuple[str, ...] = ("",)  # names as torch's named_modules() has them
    streams: Mapping[int, int] = field(default_factory=dict)  # of blocks born beside the default stream: its number

    @property
    def parameter_count(self) -> int:
        return sum(parameter.elements for parameter in self.parameters)

    @property
    def trainable_count(self) -> int:
        return sum(parameter.elements for parameter in self.parameters if parameter.trainable)

    def elements_here(self, parameter: Parameter) -> int:
        """Elements of a parameter that lie on this rank: all, but for one that tensor-parallel ranks share."""
        return min(parameter.elements, int(self.block_bytes[parameter.block]) // ITEM_BYTES[parameter.dtype])

    @property
    def compiled_graphs(self) -> int:
        """Compiled programs that a forward enters; 0 of an eager one."""
        events = self.segments["micro_step"]
        backward = np.flatnonzero((events.codes == PHASE) & (events.values == PHASES.index("backward")))
        last = int(backward[0]) if len(backward) else len(events)
        return int(entered(events)[:last].sum())

    def calls_in(self, segment: str) -> Integers:
        """Indices into `calls` of a segment's launches, in order."""
        events = self.segments[segment]
        found: Integers = events.values[events.codes == CALL]
        return found

    def bytes_of(self, category: str) -> int:
        return int(self.block_bytes[self.block_categories == CATEGORIES.index(category)].sum())


def entered(events: Events) -> npt.NDArray[np.bool_]:
    """Whether each event is the beginning of a compiled program."""
    found: npt.NDArray[np.bool_] = (events.codes == COMPILED) & np.isin(events.values, (BY_PROGRAM, BY_PART))
    return found


class NotAffine(ValueError):
    """The two traces differ in more than sizes, so nothing between them may be read off."""


@dataclass(frozen=True, slots=True)
class WorkloadFamily:
    """Two traces at two micro-batches: every size is affine in the micro-batch, so any other one can be read off."""

    first: Workload
    second: Workload

    def at(self, micro_batch: int) -> Workload:
        """The workload at `micro_batch`. Raises NotAffine when the two traces do not line up."""
        one, two = self.first, self.second
        if micro_batch in (one.micro_batch, two.micro_batch):
            return one if micro_batch == one.micro_batch else two
        steps, apart = micro_batch - one.micro_batch, two.micro_batch - one.micro_batch

        def combine(low: int, high: int) -> int:
            if (high - low) * steps % apart:
                raise NotAffine(f"{low} and {high} have no whole number between them at micro-batch {micro_batch}")
            return low + (high - low) * steps // apart

        pairs: dict[tuple[int, int], int] = {}
        segments = {}
        for name, events in one.segments.items():
            other = two.segments[name]
            if not np.array_equal(events.codes, other.codes):
                raise NotAffine(f"the {name} of two micro-batches has other operators")
            values = events.values.copy()
            for at in np.flatnonzero(events.codes == CALL):
                pair = (int(events.values[at]), int(other.values[at]))
                values[at] = pairs.setdefault(pair, len(pairs))
            segments[name] = replace(events, values=values)
        try:
            calls = tuple(one.calls[low].map_integers(two.calls[high], combine) for low, high in pairs)
        except ValueError as error:
            raise NotAffine(str(error)) from None
        difference = two.block_bytes - one.block_bytes
        if ((difference * steps) % apart).any():
            raise NotAffine("a tensor's size is not affine in the micro-batch")
        return replace(
            one,
            micro_batch=micro_batch,
            calls=calls,
            segments=segments,
            block_bytes=one.block_bytes + difference * steps // apart,
        )
