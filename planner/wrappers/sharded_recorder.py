"""A recorder for sharded modules: collectives, storages that are emptied and filled again, and tensors of many
ranks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator

from planner.collectives import COMPUTED, STORED, WAIT, collective
from planner.recorder import DTYPES, Recorder
from planner.workload import ALLOCATE, CALL, FREE, Events

# torch's operator to (kind, where among its arguments the full tensor is; -1: it is the result).
COLLECTIVES = {
    "c10d._allgather_base_": ("all_gather", 0),
    "c10d._reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d.allreduce_": ("all_reduce", 0),
    "c10d.broadcast_": ("broadcast", 0),
    "_c10d_functional.all_reduce": ("all_reduce", 0),
    "_c10d_functional.all_reduce_": ("all_reduce", 0),
    "_c10d_functional.all_gather_into_tensor": ("all_gather", -1),
    "_c10d_functional.reduce_scatter_tensor": ("reduce_scatter", 0),
    "_c10d_functional.all_to_all_single": ("all_to_all", 0),
}
# Whose advice on how to lay meshes out is for the author of a training script.
ADVICE = "torch.distributed.tensor._redistribute"
# DTensor asks for what a collective brings; its result has a storage of its own under fake tensors.
WAITED = "_c10d_functional.wait_tensor"
SILENT = ("profiler", "c10d", "_c10d_functional")


class ShardedRecorder(Recorder):
    """`groups` says how the ranks of torch's process groups are related, by their names (see fsdp.group_names)."""

    def __init__(self, groups: dict[str, str]) -> None:
        super().__init__()
        self.groups = groups
        self._issued = 0
        self._pending: dict[int, int] = {}  # block that a collective writes: its number in this segment
        self._emptied: set[int] = set()
        self._last_scatter = -1
        self._quiet = False
        self._stream_numbers: dict[int, int] = {id(torch.cpu.current_stream()): 0}

    def start(self, kind: str) -> None:
        super().start(kind)
        self._issued, self._last_scatter = 0, -1
        self._pending.clear()

    def segment(self) -> Events:
        """The segment; at its end the device waits for what is still under way, as FSDP's last hook of backward
        does."""
        if self._pending:
            self._event(WAIT, max(self._pending.values()))
            self._pending.clear()
        return super().segment()

    def block_of(self, tensor: torch.Tensor) -> int:
        return super().block_of(tensor._local_tensor if isinstance(tensor, DTensor) else tensor)

    def _born(self, storage: torch.UntypedStorage, kind: str) -> int:
        """FSDP gathers and reduces on streams of its own, which torch.cpu has as names: what is born there is served
        from a pool of that stream alone."""
        block = super()._born(storage, kind)
        numbers = self._stream_numbers
        if stream := numbers.setdefault(id(torch.cpu.current_stream()), len(numbers)):
            self.streams[block] = stream
        return block

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, storages that are resized are seen (FSDP frees gathered weights so), and what DTensor runs on
        tensors of
        the whole shape only to know the shape of a result is not taken for work."""
        resize = torch.UntypedStorage.resize_
        asking = ShardingPropagator._propagate_tensor_meta_non_cached

        def watched(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            self._resized(storage, size)
            return result

        def unheard(propagator: ShardingPropagator, schema: Any) -> Any:
            before, self._quiet = self._quiet, True
            try:
                return asking(propagator, schema)
            finally:
                self._quiet = before

        said, level = logging.getLogger(ADVICE), logging.getLogger(ADVICE).level
        said.setLevel(logging.ERROR)
        torch.UntypedStorage.resize_ = watched  # type: ignore[assignment]
        ShardingPropagator._propagate_tensor_meta_non_cached = unheard  # type: ignore[method-assign, assignment]
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # a loss that is a view of logits
                yield
        finally:
            said.setLevel(level)
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
            ShardingPropagator._propagate_tensor_meta_non_cached = asking  # type: ignore[method-assign]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # the tensor of many ranks takes itself apart first
        if self._quiet:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _record(self, func: Any, args: Any, kwargs: Any, tensors: list[Any], result: Any) -> None:
        name = func._schema.name.replace("::", ".")
        if not self.listening:
            return
        if name in COLLECTIVES:
            self._collective(name, args, tensors, result)
        elif name == WAITED:
            self._wait_for_inputs(name, func, tensors)
        elif func.namespace not in SILENT:
            self._wait_for_inputs(name, func, tensors)
            super()._record(func, args, kwargs, tensors, result)

    def _wait_for_inputs(self, name: str, func: Any, tensors: list[Any]) -> None:
        if name == "fsdp.chunk_cat" and self._last_scatter >= 0:
            self._wait(self._last_scatter)  # FSDP gives the buffer of one reduction back before it fills the next
        if func.is_view or not self._pending:
            return
        blocks = (self.live.get(tensor.untyped_storage()._cdata) for tensor in tensors)
        read = [self._pending[block] for block in blocks if block in self._pending]
        if read:
            self._wait(max(read))

    def _wait(self, which: int) -> None:
        self._event(WAIT, which)
        self._pending = {block: number for block, number in self._pending.items() if number > which}
        if self._last_scatter <= which:
            self._last_scatter = -1

    def _collective(self, name: str, args: Any, tensors: list[Any], result: Any) -> None:
        kind, at = COLLECTIVES[name]
        given = result if at < 0 else args[at]
        full = given[0] if isinstance(given, list | tuple) else given
        stored = name == "c10d._allgather_base_"
        call = collective(kind, DTYPES[full.dtype], full.numel(), self._group(args), STORED if stored else COMPUTED)
        written = result if isinstance(result, torch.Tensor) else tensors[0]
        block = self._blocks(written, self.kind)[0]
        self._event(CALL, self.calls.setdefault(call, len(self.calls)))
        self._pending[block] = self._issued
        if kind == "reduce_scatter":
            self._last_scatter = self._issued
        self._issued += 1

    def _group(self, args: Any) -> str:
        for arg in args:
            if isinstance(arg, str) and arg in self.groups:
                return self.groups[arg]
            if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
                return self.groups.get(dist.ProcessGroup.unbox(arg).group_name, "world")
        return "world"

    def _resized(self, storage: torch.UntypedStorage, size: int) -> None:
        if not self.listening:
            return
        block = self.live.get(storage._cdata)
        if block is None:
            if size:  # emptied before anyone listened
                self._born(storage, self.kind)
        elif size == 0 and block not in self._emptied:
            self._emptied.add(block)
            self._event(FREE, block)
        elif size and block in self._emptied:
            self._emptied.discard(block)
            self.block_bytes[block] = size
            self._event(ALLOCATE, block)

    def _died(self, key: int, block: int) -> None:
        if block in self._emptied:
            self._emptied.discard(block)
            if self.live.get(key) == block:
                del self.live[key]
        else:
            super()._died(key, block)
