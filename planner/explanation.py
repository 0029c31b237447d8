"""Explanation: what `rigplan explain` and `rigplan diff` print as JSON. Add fields, never rename one.

Rows of time sum to `estimate.step.seconds`, rows of memory to `estimate.memory.peak_allocated_bytes`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from planner.answer import Estimate, Known

Bound = Literal["compute", "memory", "launch", ""]

# Rows that are no operators: what the device waits for.
HOST, LINK, FLOOR = "waiting for the host", "communication not hidden", "up to the physical floor"
SLOWED = "slowed by communication"
BEST = 3  # pieces of advice that are told
# What memory rows hold besides the categories of the trace.
ROUNDING = "rounded up by the allocator"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TimeRow(_Part):
    """One operator of one shape in one place: all its calls in an optimizer step of one rank, accumulation included.

    `module` has `*` for the number of a layer, `modules` says how many are taken together. `bound` is what limits it:
    compute or memory by the datasheet, launch where the kernel is shorter than the host takes to issue it.
    `efficiency` is the share of that peak, at most 1 (what stays in the cache moves faster than memory does).
    """

    phase: str
    module: str
    modules: int
    kind: str
    operator: str
    dtype: str = ""
    shape: dict[str, int] = {}
    count: int
    flop: float = 0.0
    bytes_moved: int = 0
    bound: Bound = ""
    efficiency: float | None = None
    seconds: float
    known: Known | None = None
    timed_exactly: bool = False  # an exact measurement of this very call, not a curve


class MemoryRow(_Part):
    """Bytes that a module holds at the peak, by what they are; `modules` as in a row of time."""

    category: str
    module: str
    modules: int
    size_bytes: int


class Advice(_Part):
    """A change, as the spec has it, and the estimate with it. Saved seconds are of a step, saved bytes of the peak.

    Two changes that set the same of `sets` are alternatives to each other.
    """

    change: str
    sets: list[str]
    why: str
    costs: str
    saved_seconds: float
    saved_bytes: int
    estimate: Estimate


class Explanation(_Part):
    """Where the time and the memory of one combination go, and what would help, best first.

    `together` is the answer to the best three pieces of advice at once, where they help more than one of them.
    """

    estimate: Estimate
    time: list[TimeRow]
    memory: list[MemoryRow]
    advice: list[Advice] = []
    together: Advice | None = None

    @property
    def best_advice(self) -> list[Advice]:
        """The three that help most, of alternatives the better."""
        return best(self.advice)


def best(advice: list[Advice]) -> list[Advice]:
    """The first three that are no alternatives to one another."""
    taken: list[Advice] = []
    for item in advice:
        known = {name for other in taken for name in other.sets}
        if len(taken) < BEST and not known & set(item.sets):
            taken.append(item)
    return taken


__all__ = ["FLOOR", "HOST", "LINK", "ROUNDING", "SLOWED", "Advice", "Explanation", "MemoryRow", "TimeRow", "best"]
