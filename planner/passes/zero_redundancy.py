"""torch's ZeroRedundancyOptimizer on DDP, its ZeRO-1: whole parameters go to ranks, each steps its own and sends them.

Weights, gradients and DDP's buckets are whole on every rank; clipping sees all gradients; states, temporaries and the
kernels of the step are those of one rank's parameters. Every parameter is then broadcast by its owner, one at a time
(parameters_as_bucket_view=False). This is the rank that owns the most.
Source: torch/distributed/optim/zero_redundancy_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from planner.call import Call, TensorSpec
from planner.collectives import Writer, collective
from planner.passes import ddp
from planner.workload import ALLOCATE, CALL, PHASE, Events, Workload


def apply(workload: Workload, ranks: int) -> Workload:
    """The workload of the rank that owns the most of `ranks`; on one rank the workload itself."""
    if ranks == 1:
        return workload
    replicated = ddp.apply(workload, ranks)
    trained = [parameter for parameter in workload.parameters if parameter.gradient_block is not None]
    owner = owners([parameter.elements for parameter in trained], ranks)
    shares = [sum(p.elements for p, rank in zip(trained, owner, strict=True) if rank == own) for own in range(ranks)]
    mine = [rank == shares.index(max(shares)) for rank in owner]
    groups: dict[str, list[bool]] = {}  # kernels over lists take parameters of one dtype
    for parameter, own in zip(trained, mine, strict=True):
        groups.setdefault(parameter.dtype, []).append(own)
    writer = Writer(replicated.calls)
    sizes = replicated.block_bytes.copy()
    segments = dict(replicated.segments)
    for name in ("optimizer_first", "optimizer"):
        for block in _write_own(replicated, segments[name], mine, groups, writer):
            sizes[block] = 0
        for parameter in trained:
            which = writer.call(collective("broadcast", parameter.dtype, parameter.elements, "world"))
        writer.wait(which)
        segments[name] = writer.segment()
    return replace(replicated, calls=writer.calls, segments=segments, block_bytes=sizes)


def owners(elements: list[int], ranks: int) -> list[int]:
    """The rank that owns each parameter: the largest parameter left goes to the rank with the least."""
    shares = [0] * ranks
    owner = [0] * len(elements)
    for index in sorted(range(len(elements)), key=lambda index: -elements[index]):
        owner[index] = shares.index(min(shares))
        shares[owner[index]] += elements[index]
    return owner


def _write_own(
    workload: Workload, events: Events, mine: list[bool], groups: dict[str, list[bool]], writer: Writer
) -> Iterator[int]:
    """Write the step on the parameters that are `mine`; yields the blocks that it does without.

    What stands before the last mark of the phase is clipping, which is for all parameters.
    """
    start = int((events.codes == PHASE).nonzero()[0].max(initial=0))
    calls = [workload.calls[value] for value in events.values[start:][events.codes[start:] == CALL].tolist()]
    each = sum(_lists(call) is None for call in calls) // len(mine)  # calls on one parameter alone
    born: list[int] = []
    done = 0
    for at, (code, value, views) in enumerate(
        zip(events.codes.tolist(), events.values.tolist(), events.views.tolist(), strict=True)
    ):
        if code == ALLOCATE:
            born.append(value)
        if code != CALL or at < start:
            writer.event(code, value, views)
            born = born if at >= start else []
            continue
        call = workload.calls[value]
        dtype = _lists(call)
        if dtype is None:
            own = [mine[min(done // max(1, each), len(mine) - 1)]]
            done += 1
        else:
            own = groups.get(dtype, mine)
        if any(own):
            writer.call(_of(call, own) if dtype else call)
        if len(born) % len(own) == 0:
            yield from (block for index, block in enumerate(born) if not own[index % len(own)])
        born = []


def _lists(call: Call) -> str | None:
    """The dtype of a call over lists of tensors; None for one that takes single tensors."""
    lists = (value for value in call.arguments if isinstance(value, tuple) and value)
    return next((value[0].dtype for value in lists if isinstance(value[0], TensorSpec)), None)


def _of(call: Call, own: list[bool]) -> Call:
    """The call over some of its lists' members."""

    def kept(value: Any) -> Any:
        if isinstance(value, tuple) and len(value) == len(own):
            return tuple(item for item, keep in zip(value, own, strict=True) if keep)
        return value

    keywords = tuple((name, kept(value)) for name, value in call.keywords)
    return Call(call.name, tuple(map(kept, call.arguments)), keywords, kept(call.results))


__all__ = ["apply", "owners"]
