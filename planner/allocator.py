"""Allocator: torch's CUDA caching allocator, replayed on sizes alone.

Rules and sizes as in c10/cuda/CUDACachingAllocator: requests round to 512 bytes; up to 1 MiB they are served from 2 MiB
segments, below 10 MiB from 20 MiB segments, above from segments of their own in multiples of 2 MiB; the best-fitting
free block is taken, of equal ones the lowest, and split; neighbours merge when freed; nothing goes back to the driver
before memory runs out. Each stream has segments of its own: what one has freed serves no other.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from planner.address_space import AddressSpace

MIB = 1 << 20
ROUND = 512
SMALL_REQUEST = 1 * MIB
SMALL_SEGMENT = 2 * MIB
MIDDLE_REQUEST = 10 * MIB
MIDDLE_SEGMENT = 20 * MIB
LARGE_ROUND = 2 * MIB


Pool = tuple[int, bool]  # the stream, and whether it serves small requests


class OutOfMemory(Exception):
    """No segment of the size asked for fits under the limit, even after the cache was emptied."""

    def __init__(self, requested_bytes: int) -> None:
        super().__init__(requested_bytes)
        self.requested_bytes = requested_bytes


class Block:
    """A piece of a segment, free or taken, between its neighbours there. Sizes and addresses in bytes."""

    __slots__ = ("address", "after", "before", "free", "pool", "size")

    def __init__(self, address: int, size: int, pool: Pool) -> None:
        self.address, self.size, self.pool = address, size, pool
        self.free = False
        self.before: Block | None = None
        self.after: Block | None = None


class Allocator:
    """`allocate` gives a handle for `free`. All sizes are bytes; `allocated` and `reserved` are torch's two figures."""

    def __init__(self, limit_bytes: int | None = None, *, expandable: bool = False) -> None:
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self._limit = limit_bytes
        self._expandable = expandable
        self._free: dict[Pool, list[tuple[int, int]]] = {}  # (size, address), by pool
        self._blocks: dict[int, Block] = {}  # free blocks by address
        self._tails: dict[Pool, Block] = {}  # expandable: each pool's last block
        self._space = AddressSpace()

    def allocate(self, size_bytes: int, stream: int = 0) -> Block | None:
        """A block for `size_bytes` from the pools of `stream`; None for nothing. Raises OutOfMemory."""
        if size_bytes == 0:
            return None
        size = -(-size_bytes // ROUND) * ROUND
        small = size <= SMALL_REQUEST
        block = self._best_fit(size, (stream, small)) or self._grow(size, (stream, small))
        remaining = block.size - size
        if remaining >= ROUND if small or self._expandable else remaining > SMALL_REQUEST:
            self._split(block, size)
        self.allocated += block.size
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        return block

    def free(self, block: Block | None) -> None:
        if block is None:
            return
        self.allocated -= block.size
        before, after = block.before, block.after
        if after is not None and after.free:
            self._take(after)
            self._swallow(block, after)
        if before is not None and before.free:
            self._take(before)
            self._swallow(before, block)
            block = before
        self._put(block)

    def reset_peak(self) -> None:
        self.peak_allocated = self.allocated

    def _best_fit(self, size: int, pool: Pool) -> Block | None:
        free = self._free.setdefault(pool, [])
        at = bisect_left(free, (size, -1))
        if at == len(free):
            return None
        block = self._blocks[free[at][1]]
        self._take(block)
        return block

    def _grow(self, size: int, pool: Pool) -> Block:
        if self._expandable:
            return self._stretch(size, pool)
        segment = (
            SMALL_SEGMENT
            if pool[1]
            else MIDDLE_SEGMENT
            if size < MIDDLE_REQUEST
            else -(-size // LARGE_ROUND) * LARGE_ROUND
        )
        self._reserve(segment)
        return Block(self._space.take(segment), segment, pool)

    def _stretch(self, size: int, pool: Pool) -> Block:
        """Map more pages at the end of the pool's one segment; its last block, when free, is part of the answer."""
        page = SMALL_SEGMENT if pool[1] else MIDDLE_SEGMENT
        tail = self._tails.get(pool)
        spare = tail.size if tail is not None and tail.free else 0
        grown = -(-(size - spare) // page) * page
        self._reserve(grown)
        start = (2 * pool[0] + pool[1]) << 50 if tail is None else tail.address + tail.size
        if tail is not None and tail.free:
            self._take(tail)
            tail.size += grown
            return tail
        block = Block(start, grown, pool)
        block.before = tail
        if tail is not None:
            tail.after = block
        self._tails[pool] = block
        return block

    def _reserve(self, size: int) -> None:
        if self._limit is not None and self.reserved + size > self._limit:
            self._release()
            if self.reserved + size > self._limit:
                raise OutOfMemory(size)
        self.reserved += size
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved

    def _release(self) -> None:
        """Give every wholly free segment back to the driver, as torch does before it gives up."""
        for block in [block for block in self._blocks.values() if block.before is None and block.after is None]:
            self._take(block)
            self.reserved -= block.size
            if not self._expandable:
                self._space.give_back(block.address, block.size)
            if self._tails.get(block.pool) is block:
                del self._tails[block.pool]

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.pool)
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        elif self._tails.get(block.pool) is block:
            self._tails[block.pool] = rest
        block.after, block.size = rest, size
        self._put(rest)

    def _swallow(self, block: Block, after: Block) -> None:
        block.size += after.size
        block.after = after.after
        if block.after is not None:
            block.after.before = block
        elif self._tails.get(after.pool) is after:
            self._tails[after.pool] = block

    def _put(self, block: Block) -> None:
        block.free = True
        self._blocks[block.address] = block
        insort(self._free.setdefault(block.pool, []), (block.size, block.address))

    def _take(self, block: Block) -> None:
        block.free = False
        del self._blocks[block.address]
        free = self._free[block.pool]
        del free[bisect_left(free, (block.size, block.address))]
