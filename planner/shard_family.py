"""Sharded workloads of any number of ranks, read off two traces.

A parameter sharded over n ranks has ceil(d / n) rows on the first of them, and a buffer that gathers it n times as
many.
Sizes made of the parameters that are sharded together are known so, padding included; any other is affine in 1/n. So
two
traces give every size, as two micro-batches do (see workload.WorkloadFamily).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from planner.call import ITEM_BYTES
from planner.workload import CALL, NotAffine, Parameter, Workload

# Small groups divide most dimensions, so that what they show is exact.
ANCHORS = (2, 4)


@dataclass(frozen=True, slots=True)
class ShardFamily:
    """Traces of one model and micro-batch sharded over `ranks` (two different counts)."""

    first: Workload
    second: Workload
    ranks: tuple[int, int] = ANCHORS

    def at(self, ranks: int) -> Workload:
        """The workload over `ranks`, 2 or more. Raises NotAffine when the two traces do not line up."""
        if ranks in self.ranks:
            return (self.first, self.second)[self.ranks.index(ranks)]
        one, two = self.first, self.second
        known = self._padded(ranks)

        def size(low: int, high: int) -> int:
            return known[low, high] if (low, high) in known else self._size(low, high, ranks)

        pairs: dict[tuple[int, int], int] = {}
        segments = {}
        for name, events in one.segments.items():
            other = two.segments[name]
            same = events.codes == CALL
            if not np.array_equal(events.codes, other.codes) or not np.array_equal(
                events.values[~same], other.values[~same]
            ):
                raise NotAffine(f"the {name} of two group sizes has other operators")
            values = events.values.copy()
            for at in np.flatnonzero(same):
                values[at] = pairs.setdefault((int(events.values[at]), int(other.values[at])), len(pairs))
            segments[name] = replace(events, values=values)
        try:
            calls = tuple(one.calls[low].map_integers(two.calls[high], size) for low, high in pairs)
        except ValueError as error:
            raise NotAffine(str(error)) from None
        sizes = [size(low, high) for low, high in zip(one.block_bytes.tolist(), two.block_bytes.tolist(), strict=True)]
        for parameter in one.parameters:
            part = prod(parameter.shape[1:]) * ITEM_BYTES[parameter.dtype]
            if one.block_bytes[parameter.block] != rows(parameter, self.ranks[0]) * part:
                continue  # cut by tensor parallelism as well
            sizes[parameter.block] = rows(parameter, ranks) * prod(parameter.shape[1:]) * ITEM_BYTES[parameter.dtype]
        return replace(one, calls=calls, segments=segments, block_bytes=np.array(sizes, dtype=np.int64))

    def _padded(self, ranks: int) -> dict[tuple[int, int], int]:
        """What follows from the parameters' shapes: (size over few ranks, size over many) to the size over `ranks`."""
        few, many = self.ranks
        known: dict[tuple[int, int], int] = {}
        for members in _sharded_together(self.first.parameters):
            part = {
                count: sum(rows(member, count) * prod(member.shape[1:]) for member in members)
                for count in (few, many, ranks)
            }
            for unit in sorted(set(ITEM_BYTES.values())):
                known.setdefault((part[few] * unit, part[many] * unit), part[ranks] * unit)
                if len(members) > 1:  # the size of one alone may as well be an activation's
                    known.setdefault((few * part[few] * unit, many * part[many] * unit), ranks * part[ranks] * unit)
        for parameter in self.first.parameters:
            known.setdefault((rows(parameter, few), rows(parameter, many)), rows(parameter, ranks))
        return known

    def _size(self, low: int, high: int, ranks: int) -> int:
        """What is `low` over the first count of ranks and `high` over the second, over `ranks`."""
        few, many = self.ranks
        if low == high:
            return low
        if low * few == high * many:  # one dimension in equal parts
            return -(-low * few // ranks)
        if low * many == high * few:  # one row a rank, for want of more
            return low * ranks // few
        slope = (low - high) * few * many / (many - few)
        constant = (high * many - low * few) / (many - few)
        return max(1, int(np.ceil(constant + slope / ranks)))


def rows(parameter: Parameter, ranks: int) -> int:
    """Rows of a parameter on the first of `ranks`."""
    return -(-(parameter.shape[0] if parameter.shape else 1) // ranks)


def _sharded_together(parameters: tuple[Parameter, ...]) -> Iterator[list[Parameter]]:
    """Each parameter alone, and those whose gradients come out of one reduction."""
    groups: dict[int, list[Parameter]] = {}
    for parameter in parameters:
        yield [parameter]
        if parameter.gradient_block is not None:
            groups.setdefault(parameter.gradient_block, []).append(parameter)
    yield from groups.values()
