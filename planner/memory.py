"""Memory: a workload's allocations and frees, replayed step after step through torch's allocator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.allocator import Allocator, Block, OutOfMemory
from planner.call import Call
from planner.workload import ALLOCATE, CALL, CATEGORIES, FREE, GRADIENT, PHASE, PHASES, Workload

# After three steps nothing new happens: states are born in the first, the second meets the fragments they left.
STEPS = 3
RESULT = -1  # in a group of blocks: a result of the call is born there


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the allocator held. `peaks` are the most allocated bytes of each phase; categories those at the largest."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_phase: str
    peaks: dict[str, int]
    by_category: dict[str, int]
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Workspace:
    """A block that a library takes at the first of `calls` in a thread and keeps; it may pin a large segment."""

    size_bytes: int
    calls: frozenset[str]
    backward: bool  # in autograd's thread; else in the caller's


@dataclass(frozen=True, slots=True)
class Scratch:
    """What the libraries allocate besides the tensors a trace shows."""

    held: tuple[Workspace | int, ...]  # blocks taken once and kept; a number of bytes is taken after loading
    during: Callable[
        [Call], tuple[tuple[int, ...], ...]
    ]  # groups of blocks taken and given back inside a call, in turn
    gathered_bytes: int = 0  # of sharded weights, put together at once to be saved


def replay(
    workload: Workload,
    scratch: Scratch,
    *,
    accumulation: int = 1,
    expandable: bool = False,
    limit_bytes: int | None = None,
    evaluation: bool = True,
) -> Timeline:
    """Replay load, `STEPS` optimizer steps, an evaluation where there is one and a save where that takes memory. With a
    limit, the replay stops where torch would run out of memory."""
    player = _Player(workload, scratch, Allocator(limit_bytes, expandable=expandable))
    failed = False
    try:
        _play_all(player, scratch, accumulation, evaluation)
    except OutOfMemory:
        failed = True
    return player.timeline(failed)


def _play_all(player: _Player, scratch: Scratch, accumulation: int, evaluation: bool) -> None:
    player.play("load")
    player.phase = "forward"  # libraries take their workspaces at the first product
    for block in scratch.held:
        if isinstance(block, int):
            player.hold(block)
    for step in range(STEPS):
        for micro_step in range(min(accumulation, 2)):  # the third micro-step is like the second
            player.play("micro_step", again=micro_step > 0)
        player.play("optimizer_first" if step == 0 else "optimizer")
        player.drop_gradients()
        if step == 0 and "settle" in player.workload.segments:
            player.play("settle")
    if evaluation and "evaluation" in player.workload.segments:
        player.play("evaluation")
    if scratch.gathered_bytes:
        player.save(scratch.gathered_bytes)


def held_at_peak(
    workload: Workload, scratch: Scratch, peak_bytes: int, *, accumulation: int = 1, expandable: bool = False
) -> tuple[dict[int, int], int]:
    """What is held when `replay` first allocates `peak_bytes`: how often each block, and bytes of workspaces besides.

    A block is there twice while a new gradient waits to be added to the old one. Bytes are unrounded.
    """
    witness = _Witness(workload, scratch, Allocator(None, expandable=expandable))
    witness.awaited_bytes = peak_bytes
    _play_all(witness, scratch, accumulation, evaluation=True)
    return witness.seen, witness.seen_workspace_bytes


class _Player:
    def __init__(self, workload: Workload, scratch: Scratch, allocator: Allocator) -> None:
        self.workload, self.allocator = workload, allocator
        self.sizes = workload.block_bytes.tolist()
        self.categories = workload.block_categories.tolist()
        self.live: dict[int, Block | None] = {}
        self.held = [0] * len(CATEGORIES)
        self.most = 0
        self.at_peak = list(self.held)
        self.phase = "load"
        self.peak_phase = "load"
        self.peaks: dict[str, int] = {}
        self.scratch = [scratch.during(call) for call in workload.calls]
        self.placed = {value for value, groups in enumerate(self.scratch) if any(RESULT in group for group in groups)}
        self.names = [call.name for call in workload.calls]
        self.awaited = [block for block in scratch.held if isinstance(block, Workspace)]
        self.gradients = [parameter.gradient_block for parameter in workload.parameters]
        self.streams = workload.streams

    def play(self, segment: str, *, again: bool = False) -> None:
        """One segment. `again`: gradients are there already, so a new one is added to the old and dies."""
        events = self.workload.segments[segment]
        extra: dict[int, Block | None] = {}
        fresh = {block for block in self.gradients if block is not None} if again else set()
        free = self.allocator.free
        born: list[int] = []  # what the next call writes: it decides where among its own blocks
        for code, value in zip(events.codes.tolist(), events.values.tolist(), strict=True):
            if code == ALLOCATE:
                born.append(value)
                continue
            if born and not (code == CALL and value in self.placed):
                for block in born:
                    self._bear(block, fresh, extra)
                born.clear()
            if code == FREE:
                if value in extra:
                    free(extra.pop(value))
                    self._count(value, -1)
                elif value in self.live:
                    free(self.live.pop(value))
                    self._count(value, -1)
            elif code == CALL:
                if self.awaited:
                    self._take_workspaces(self.names[value])
                for group in self.scratch[value]:
                    self._pass_through(group, bear=lambda: self._bear(born.pop(0), fresh, extra))
                born.clear()
            elif code == GRADIENT:
                block = self.gradients[value]
                if block in extra:
                    free(extra.pop(block))
                    self._count(block, -1)
            elif code == PHASE:
                self._end_phase()
                self.phase = PHASES[value]
        for block in born:
            self._bear(block, fresh, extra)
        for block in list(extra):
            free(extra.pop(block))
            self._count(block, -1)
        self._end_phase()

    def _bear(self, block: int, fresh: set[int], extra: dict[int, Block | None]) -> None:
        """Allocate a block of the trace, unless it is there already."""
        if block in fresh or block not in self.live:
            there = extra if block in fresh else self.live
            there[block] = self.allocator.allocate(self.sizes[block], self.streams.get(block, 0))
            self._count(block, 1)

    def hold(self, size: int) -> None:
        self.allocator.allocate(size)
        self.held[CATEGORIES.index("workspace")] += size

    def _take_workspaces(self, name: str) -> None:
        for block in list(self.awaited):
            if name in block.calls and block.backward == (self.phase == "backward"):
                self.awaited.remove(block)
                self.hold(block.size_bytes)

    def drop_gradients(self) -> None:
        for block in self.gradients:
            if block in self.live:
                self.allocator.free(self.live.pop(block))
                self._count(block, -1)
        self._end_phase()

    def save(self, gathered_bytes: int) -> None:
        """Whole weights of a checkpoint, put together in turn and copied to the host."""
        self.phase = "save"
        self._pass_through((gathered_bytes,), "temporary")
        self._end_phase()

    def timeline(self, failed: bool) -> Timeline:
        by_category = {name: size for name, size in zip(CATEGORIES, self.at_peak, strict=True) if size}
        return Timeline(self.most, self.allocator.peak_reserved, self.peak_phase, self.peaks, by_category, failed)

    def _pass_through(
        self, sizes: tuple[int, ...], category: str = "workspace", bear: Callable[[], None] | None = None
    ) -> None:
        """Blocks taken at once and given back; at each RESULT the next of what the call writes is born."""
        kind = CATEGORIES.index(category)
        taken = []
        for size in sizes:
            if size == RESULT and bear is not None:
                bear()
            else:
                taken.append(self.allocator.allocate(size))
                self.held[kind] += size
                self._look()
        for block in taken:
            self.allocator.free(block)
        self.held[kind] -= sum(size for size in sizes if size != RESULT)

    def _count(self, block: int, sign: int) -> None:
        self.held[self.categories[block]] += sign * self.sizes[block]
        if sign > 0:
            self._look()

    def _look(self) -> None:
        if self.allocator.allocated > self.most:
            self.most = self.allocator.allocated
            self.at_peak = list(self.held)
            self.peak_phase = self.phase

    def _end_phase(self) -> None:
        self.peaks[self.phase] = max(self.peaks.get(self.phase, 0), self.allocator.peak_allocated)
        self.allocator.reset_peak()


class _Witness(_Player):
    """A player that remembers what is held when a number of bytes is first allocated."""

    def __init__(self, workload: Workload, scratch: Scratch, allocator: Allocator) -> None:
        super().__init__(workload, scratch, allocator)
        self.awaited_bytes = 0
        self.seen: dict[int, int] = {}
        self.seen_workspace_bytes = 0
        self._held: dict[int, int] = {}

    def _count(self, block: int, sign: int) -> None:
        self._held[block] = self._held.get(block, 0) + sign
        super()._count(block, sign)

    def _look(self) -> None:
        super()._look()
        if not self.seen and self.allocator.allocated == self.awaited_bytes:
            self.seen = {block: times for block, times in self._held.items() if times}
            workspace = CATEGORIES.index("workspace")
            blocks = sum(self.sizes[block] * n for block, n in self.seen.items() if self.categories[block] == workspace)
            self.seen_workspace_bytes = self.held[workspace] - blocks
