"""Question: how a combination is to be answered. Plain data, without heavy imports."""

from __future__ import annotations

from dataclasses import dataclass

from planner.strategy import HardwareChoice, Strategy

Combination = tuple[Strategy, HardwareChoice]


@dataclass(frozen=True, slots=True)
class How:
    """`timed`: with step time, days and cost. `whole`: where no micro-batch fits, an estimate at the smallest instead
    of the reason. `read_off`: a given micro-batch may be read off two traces of smaller ones."""

    timed: bool = True
    whole: bool = False
    read_off: bool = False


__all__ = ["Combination", "How"]
