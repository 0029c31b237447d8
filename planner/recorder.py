"""Recorder: a dispatch mode that writes down every operator and the life of every storage under it."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from planner.call import Call, TensorSpec
from planner.fake_results import FakeResults, extent_bytes
from planner.module_path import WHOLE, ModulePath
from planner.workload import (
    ALLOCATE,
    BY_PART,
    BY_PROGRAM,
    CALL,
    CATEGORIES,
    COMPILED,
    FREE,
    GRADIENT,
    MODULE,
    PHASE,
    PHASES,
    Events,
)

DTYPES = {
    torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "b8",
    torch.complex64: "c64", torch.float8_e4m3fn: "f8", torch.float8_e5m2: "f8",
}  # fmt: skip
# Operators that launch no kernel although their schema does not call them views.
NO_KERNEL = {
    "empty.memory_format", "empty_like.default", "empty_strided.default", "new_empty.default",
    "new_empty_strided.default", "_unsafe_view.default", "lift_fresh.default", "detach.default",
    "set_.source_Storage", "resize_.default", "_local_scalar_dense.default", "is_same_size.default", "sym_size.int",
}  # fmt: skip
# Operators that allocate their results from the last to the first: dropout makes its mask before its output.
LAST_FIRST = {"native_dropout.default"}
# What is real stays real up to here: masks and index tensors that a forward may branch on.
REAL_ELEMENTS = 1 << 24


class Recorder(TorchDispatchMode):
    """Use inside a FakeTensorMode. Tensors that are all real run for real, so that `if mask.all()` has an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Call, int] = {}
        self.block_bytes: list[int] = []
        self.categories: list[int] = []
        self.live: dict[int, int] = {}
        self.vocabulary = -1
        self.listening = True
        self.in_parts = False  # compiled programs are parts that a model was cut into
        self.answer: bool | None = None  # to a forward that asks a device's tensor yes or no
        self.kind = "temporary"
        self.modules = ModulePath()
        self.owners: list[int] = []  # the module of each block
        self.streams: dict[int, int] = {}  # of blocks born beside the default stream (see ShardedRecorder)
        self._module = WHOLE
        self._stepped = WHOLE  # whose parameters the optimizer works on
        self._events: list[tuple[int, int, int]] = []
        self._views = 0
        self._results = FakeResults()
        self._sums = True
        self._merged: dict[int, int] = {}  # a block that turned out to be another one, written in place
        # (where its birth is written, block, old block) of a gradient sum
        self._sum: tuple[int, int, int] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # wrappers.compiled keeps dynamo out of this file; torch's own guard costs time at every operator

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # what runs is recorded, not the compiling

    # -- what the tracer says

    def start(self, kind: str) -> None:
        """A new segment; blocks born from now on are of category `kind` unless an operator says better."""
        self._events, self._views, self.kind = [], 0, kind
        self._module = self._stepped = WHOLE

    def phase(self, name: str) -> None:
        self._sums = name != "evaluation"  # no autograd there, so no sums of gradients
        self._event(PHASE, PHASES.index(name))

    def gradient_ready(self, parameter: int) -> None:
        self._event(GRADIENT, parameter)

    def segment(self) -> Events:
        columns = np.array(self._events, dtype=np.int64).reshape(-1, 3).T
        return Events(*(np.ascontiguousarray(column) for column in columns))

    def block_of(self, tensor: torch.Tensor) -> int:
        """The block a tensor lives in; a storage not seen yet is born now."""
        return self._blocks(tensor, self.kind)[0]

    def recategorise(self, block: int, category: str) -> None:
        self.categories[block] = CATEGORIES.index(category)

    def compiled(self, inside: bool) -> None:
        """A compiled program begins or ends."""
        self._event(COMPILED, (BY_PART if self.in_parts else BY_PROGRAM) if inside else 0)

    def launch(self, call: Call) -> None:
        """A kernel that no operator stands for."""
        if self.listening:
            self._event(CALL, self.calls.setdefault(call, len(self.calls)))

    def launched(self, name: str, args: Any, kwargs: Any, results: Any) -> None:
        """An operator that wrote into what was there."""
        self.launch(_call(name, args, kwargs, results))

    def own(self, block: int, module: str) -> None:
        """Say whose a block is: what the optimizer does to it, it does for that module."""
        self.owners[block] = self.modules.number(module)

    # -- what torch says

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:  # asked for at every step of torch's own Python code
            return args[0].fake_device if isinstance(args[0], FakeTensor) else args[0].device
        kwargs = kwargs or {}
        tensors = [item for item in _flat((args, tuple(kwargs.values()))) if isinstance(item, torch.Tensor)]
        real = not any(isinstance(tensor, FakeTensor) for tensor in tensors)
        if not real and not func._schema.returns and func._schema.name.startswith(_IN_PLACE_LISTS):
            self._record(func, args, kwargs, tensors, ())  # writes into what is there: nothing to run
            return None
        if real and tensors and sum(tensor.numel() for tensor in tensors) <= REAL_ELEMENTS:
            with unset_fake_temporarily():
                result = func(*args, **kwargs)
        else:
            if func in _INDEXING:
                args = _without_masks(args)
            if func is _SCALAR and self.kind == "optimizer":
                return 1.0  # a norm or a step count that an optimizer reads: memory and kernels do not depend on it
            if func is _SCALAR and self.answer is not None and tensors[0].dtype == torch.bool:
                return self.answer
            result = self._results.run(func, STAND_INS.get(func, func), args, kwargs, tensors)
            if real and not tensors and isinstance(result, torch.Tensor):
                result = _made_real(func, result, args, kwargs)
        self._record(func, args, kwargs, tensors, result)
        return result

    def _record(self, func: Any, args: Any, kwargs: Any, tensors: list[Any], result: Any) -> None:
        namespace = func.namespace
        if namespace == "prim" or not self.listening:
            return
        results = [item for item in _flat(result) if isinstance(item, torch.Tensor)]
        name = (
            func._schema.name.removeprefix("aten::").replace("::", ".")
            + "."
            + (func._schema.overload_name or "default")
        )
        if self.kind == "optimizer":
            self._stepped = self._owner_of(tensors)
        parameters_cast = name == "_to_copy.default" and self._category_of(tensors[0]) in ("weights", "optimizer")
        kernel = not (func.is_view or name in NO_KERNEL)
        if kernel and all(item.dim() == 0 and not isinstance(item, FakeTensor) for item in (*tensors, *results)):
            kernel = False  # arithmetic on Python numbers happens on the host
        born = 0
        for item in reversed(results) if name in LAST_FIRST else results:
            kind = self.kind
            if parameters_cast:
                kind = "casts"
            elif self.kind == "activations" and item.is_floating_point() and item.shape[-1:] == (self.vocabulary,):
                kind = "logits"
            born += self._blocks(item, kind)[1]
        if not kernel:
            self._views += 1
            return
        call = _call(name, args, kwargs, results)
        self._event(CALL, self.calls.setdefault(call, len(self.calls)))
        if name == "add.Tensor" and self._sums and not torch.is_grad_enabled() and self.kind == "activations":
            self._watch_sum(tensors, results[0])

    def _watch_sum(self, tensors: list[Any], result: torch.Tensor) -> None:
        """Autograd adds a second gradient into the first in place when nobody else holds that one; never for tensor
        subclasses such as fakes. So a sum whose first term dies at once was written into it (input_buffer.cpp)."""
        old = tensors[0]
        same = old.shape == result.shape and old.dtype == result.dtype and _dense(old)
        block, old_block = (self.live.get(item.untyped_storage()._cdata) for item in (result, old))
        if same and block is not None and old_block is not None and self._events[-2][:2] == (ALLOCATE, block):
            self._sum = (len(self._events) - 2, block, old_block)

    def _owner_of(self, tensors: list[Any]) -> int:
        """The module that all of these belong to; the whole where they belong to several."""
        blocks = {self.live.get(tensor.untyped_storage()._cdata) for tensor in tensors if tensor.dim()}
        owners = {self.owners[block] for block in blocks if block is not None}
        return owners.pop() if len(owners) == 1 else WHOLE

    def _category_of(self, tensor: torch.Tensor) -> str:
        block = self.live.get(tensor.untyped_storage()._cdata)
        return "" if block is None else CATEGORIES[self.categories[block]]

    def _blocks(self, tensor: torch.Tensor, kind: str) -> tuple[int, bool]:
        storage = tensor.untyped_storage()
        known = self.live.get(storage._cdata)
        if known is not None:
            return known, False
        return self._born(storage, kind), True

    def _born(self, storage: torch.UntypedStorage, kind: str) -> int:
        key, block = storage._cdata, len(self.block_bytes)
        self.block_bytes.append(storage.nbytes())
        self.categories.append(CATEGORIES.index(kind))
        self.live[key] = block
        self._event(ALLOCATE, block)
        self.owners.append(self._module)
        watch = weakref.finalize(storage, self._died, key, block)
        watch.atexit = False
        return block

    def _died(self, key: int, block: int) -> None:
        block = self._merged.get(block, block)
        if self.live.get(key) == block:
            del self.live[key]
        if self._sum is not None and block == self._sum[2]:
            self._write_in_place(*self._sum)
        else:
            self._event(FREE, block)

    def _write_in_place(self, birth: int, block: int, old_block: int) -> None:
        del self._events[birth]
        self._merged[block] = old_block
        for key, known in self.live.items():
            if known == block:
                self.live[key] = old_block
        self._sum = None

    def _event(self, code: int, value: int) -> None:
        if not self.listening and code != FREE:
            return
        if code != FREE:
            self._sum = None
        if code in (ALLOCATE, CALL):
            here = self._stepped if self.kind == "optimizer" else self.modules.here
            if here != self._module:
                self._events.append((MODULE, here, 0))
                self._module = here
        self._events.append((code, value, self._views))
        self._views = 0


_HOUSEKEEPING = {"device", "layout", "pin_memory", "non_blocking", "generator"}


def _softmax_shape(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    return x.new_empty(x.shape, dtype=torch.float32 if half_to_float else x.dtype)  # contiguous, whatever x is


def _grouped_shape(
    one: torch.Tensor, two: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> torch.Tensor:
    """A matmul for each expert: rows grouped (2d x 3d), columns grouped (3d x 2d), or a sum a group (2d x 2d)."""
    groups = () if one.dim() != two.dim() else (offs.shape[0],) if one.dim() == 2 else (one.shape[0],)
    columns = two.shape[-1]
    aligned = -(-columns * one.element_size() // 16) * 16 // one.element_size()  # rows start at multiples of 16 bytes
    out = one.new_empty(*groups, one.shape[-2], aligned, dtype=out_dtype or one.dtype)
    return out if aligned == columns else out[..., :columns]


def _ctc_shape(
    log_probs: torch.Tensor, targets: torch.Tensor, _: Any, target_lengths: Any, *__: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """CTC keeps log alpha: a row of twice the longest target plus one for each frame and sample."""
    batch, frames = log_probs.shape[1], log_probs.shape[0]
    longest = targets.shape[-1]  # an upper bound where the lengths are not known: targets may come in a single row
    if not isinstance(target_lengths, FakeTensor):
        with unset_fake_temporarily():
            longest = max(int(length) for length in target_lengths)
    return log_probs.new_empty(batch), log_probs.new_empty(batch, frames, 2 * longest + 1)


def _ctc_gradient(grad: torch.Tensor, log_probs: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(log_probs)


_DEVICE = torch.ops.prim.device.default
_IN_PLACE_LISTS = ("aten::_foreach_", "aten::_fused_")
_INDEXING = {
    torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default,
    torch.ops.aten._index_put_impl_.default,
}  # fmt: skip


def _without_masks(args: Any) -> Any:
    """A real mask as the positions it holds, as a kernel takes it: a fake tensor cannot be asked how many there are."""
    source, indices, *rest = args
    if not any(isinstance(item, torch.Tensor) and item.dtype == torch.bool for item in indices):
        return args
    found: list[Any] = []
    for item in indices:
        if isinstance(item, torch.Tensor) and item.dtype == torch.bool and not isinstance(item, FakeTensor):
            with unset_fake_temporarily():
                found.extend(item.nonzero().unbind(1))
        else:
            found.append(item)
    return (source, found, *rest)


_SCALAR = torch.ops.aten._local_scalar_dense.default
# Operators whose cpu rules refuse what CUDA's kernels take (fp32 experts; bf16 in, fp32 out) or ask for values: only
# the shape is needed.
STAND_INS: dict[Any, Any] = {
    torch.ops.aten._softmax.default: _softmax_shape,
    torch.ops.aten._log_softmax.default: _softmax_shape,
    torch.ops.aten._grouped_mm.default: _grouped_shape,
    torch.ops.aten._ctc_loss.Tensor: _ctc_shape,
    torch.ops.aten._ctc_loss.default: _ctc_shape,
    torch.ops.aten._ctc_loss_backward.Tensor: _ctc_gradient,
    torch.ops.aten._ctc_loss_backward.default: _ctc_gradient,
}


def _made_real(func: Any, fake: torch.Tensor, args: Any, kwargs: Any) -> torch.Tensor:
    """Make small masks, indices and scalars of a factory for real; a random scalar is 1, so that nothing is skipped."""
    # A mask of ones is floating in some models, which ask whether it hides anything.
    wanted = not fake.is_floating_point() or fake.dim() == 0 or func._schema.name == "aten::ones"
    if not wanted or fake.numel() > REAL_ELEMENTS or "empty" in func._schema.name:
        return fake
    with unset_fake_temporarily():
        return (
            torch.ones_like(made)
            if "rand" in func._schema.name and (made := func(*args, **kwargs)).dim() == 0
            else func(*args, **kwargs)
        )


def _call(name: str, args: Any, kwargs: Any, results: Any) -> Call:
    return Call(
        name,
        tuple(_plain(arg) for arg in args),
        tuple((key, _plain(value)) for key, value in kwargs.items() if key not in _HOUSEKEEPING),
        tuple(_spec(item) for item in results),
    )


def _flat(value: Any) -> Any:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _dense(tensor: torch.Tensor) -> bool:
    return extent_bytes(tensor) == tensor.numel() * tensor.element_size()


def _spec(tensor: torch.Tensor) -> TensorSpec:
    stride = None if tensor.is_contiguous() else tuple(tensor.stride())
    return TensorSpec(DTYPES[tensor.dtype], tuple(tensor.shape), stride)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _spec(value)
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, torch.dtype):
        return DTYPES[value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
