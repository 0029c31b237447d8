"""Rung: one change that saves memory, answered by the changed spec; and the question that all rungs belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from catalog.errors import RigplanError
from planner.answer import Estimate
from planner.question import Combination, How
from planner.search import Progress, outcomes
from planner.spec import Spec
from planner.strategy import HardwareChoice, Strategy, choices

MEMORY = How(timed=False, whole=True)
SHOWN_ABOVE = 0.005  # of the peak: less is within what two answers differ by anyway


@dataclass(frozen=True, slots=True)
class Rung:
    """One change, written as the spec has it; what it costs in words; the estimate with it and the bytes it saves."""

    change: str
    price: str
    estimate: Estimate
    saved_bytes: int

    @property
    def fits(self) -> bool:
        return self.estimate.verdict == "fits"

    def helps(self, found: Estimate) -> bool:
        """Whether it saves memory that is worth a line, or has a better verdict than what was found without it."""
        worth = SHOWN_ABOVE * found.memory.peak_reserved_bytes
        return self.saved_bytes > worth or self.estimate.verdict in _better(found)


def _better(found: Estimate) -> tuple[str, ...]:
    words = ("fits", "borderline", "does-not-fit")
    return words[: words.index(found.verdict)]


@dataclass(frozen=True, slots=True)
class Asked:
    """A spec with one combination, its batches settled, and what was found of it."""

    spec: Spec
    found: Estimate
    strategy: Strategy
    choice: HardwareChoice
    profile: str = ""
    progress: Progress | None = None

    @classmethod
    def of(cls, spec: Spec, found: Estimate, profile: str = "", progress: Progress | None = None) -> Self:
        """The question of an estimate; its spec leaves one combination."""
        strategy, choice = next(iter(choices(spec)))
        batches = {name: getattr(found.strategy, name) for name in ("micro_batch", "accumulation", "global_batch")}
        return cls(spec, found, replace(strategy, **batches), choice, profile, progress)

    def tried(self, combinations: Sequence[Combination], spec: Spec | None = None) -> list[Estimate | None]:
        """An estimate of each that can be answered: a model that cannot be traced so has no such rung."""
        try:
            answers = outcomes(
                spec or self.spec, combinations, MEMORY, profile=self.profile, progress=self.progress, what="changes"
            )
        except RigplanError:
            return [None] * len(combinations)
        return [None if isinstance(answer, str) else answer for answer in answers]

    def rung(self, change: str, price: str, answer: Estimate) -> Rung:
        return Rung(change, price, answer, self.found.memory.peak_reserved_bytes - answer.memory.peak_reserved_bytes)


__all__ = ["MEMORY", "Asked", "Rung"]
