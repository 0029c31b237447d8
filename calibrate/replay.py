"""Run a recorded call again on real hardware, on random and legal arguments of its shapes and layouts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from calibrate import gpu_only
from calibrate.legal import NotReplayable, base_name, values_of
from calibrate.pool import DTYPE_NAMES, DTYPES, RandomPool, pool_of
from planner.call import ITEM_BYTES, Call, TensorSpec

__all__ = ["NotReplayable", "Rotation", "call_bytes", "rotation_sets", "runnable"]

MOST_SETS = 32  # of one call: smaller inputs than L2 / 32 are found in the cache in real training too
MOST_TENSORS = 4000  # of one rotation: an optimizer's lists are long, and each tensor takes time to make
L2_MULTIPLE = 2  # rotating inputs are to exceed the L2 this many times

SUMS = ("addmm", "baddbmm")  # with `out` of the shape that is added to, recorded where something is summed in place

Thunk = Callable[[], Any]

# dtype, device and such arrive as text: the words of TensorSpec, or torch's own ("torch.bfloat16").
LAYOUTS = {
    "torch.strided": torch.strided,
    "torch.contiguous_format": torch.contiguous_format,
    "torch.preserve_format": torch.preserve_format,
    "torch.channels_last": torch.channels_last,
    "torch.channels_last_3d": torch.channels_last_3d,
}


class Rotation:
    """Calling it runs the operator once on the next of its sets of arguments."""

    def __init__(self, thunks: Sequence[Thunk]) -> None:
        self.sets = len(thunks)
        self._turn = itertools.cycle(thunks)

    def __call__(self) -> None:
        next(self._turn)()


def runnable(call: Call, device: torch.device | str, *, sets: int) -> Rotation:
    """The call, ready to run on `device` over `sets` rotating copies of its arguments, without gradients.

    Runs it once to compare what it returns with what was recorded. Raises NotReplayable with the reason.
    """
    pool = pool_of(torch.device(device))
    with torch.no_grad():
        try:
            thunks = [_thunk(call, pool) for _ in range(sets)]
            given = thunks[0]()
        except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError, IndexError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            reason = str(error).strip().splitlines()
            raise NotReplayable(f"{call.name}: {reason[0] if reason else type(error).__name__}") from None
        _compare(call, given)
        return Rotation([torch.no_grad()(thunk) for thunk in thunks])


def call_bytes(call: Call) -> int:
    """Bytes of all tensors that the call is given, broadcast dimensions counted once."""
    return sum(spec.touched_bytes for spec in call.tensors)


def rotation_sets(call: Call, l2_bytes: int, budget_bytes: int) -> int:
    """How many sets of the call's arguments exceed the L2 cache without exceeding `budget_bytes`; at least one."""
    one = max(call_bytes(call), 1)
    most = min(MOST_SETS, MOST_TENSORS // max(len(call.tensors), 1), budget_bytes // one)
    return max(1, min(most, -(-L2_MULTIPLE * l2_bytes // one)))


def result_bytes(call: Call) -> int:
    """Bytes of what the call returns."""
    return sum(spec.elements * ITEM_BYTES[spec.dtype] for spec in call.results)


def _thunk(call: Call, pool: RandomPool) -> Thunk:
    operator = _operator(call.name)
    schema = operator._schema.arguments
    bound = {argument.name: value for argument, value in zip(schema, call.arguments, strict=False)} | dict(
        call.keywords
    )
    made = {}
    for argument in schema:
        if argument.name in bound:
            written = argument.alias_info is not None and argument.alias_info.is_write
            made[argument.name] = _real(call, bound, argument.name, bound[argument.name], pool, written=written)
        elif argument.name == "device" and not call.tensors:
            made["device"] = pool.device
    if (own := gpu_only.COUNTERPARTS.get(base_name(call))) is not None:
        thunk: Thunk = own(made, pool.device)
        return thunk
    if base_name(call) in SUMS and call.tensors[0] == dict(call.keywords).get("out"):
        made["self"] = made["out"]  # a sum goes on where it is
    positional = [made.pop(argument.name) for argument in schema[: len(call.arguments)]]
    return lambda: operator(*positional, **made)


def _operator(name: str) -> Any:
    *namespace, base, overload = name.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace[0] if namespace else "aten"), base), overload)
    except AttributeError:
        raise NotReplayable(f"torch {torch.__version__} has no operator {name}") from None


def _real(
    call: Call, bound: dict[str, Any], name: str, value: Any, pool: RandomPool, *, written: bool, place: int = 0
) -> Any:
    """One recorded argument as what the operator takes."""
    if isinstance(value, TensorSpec):
        return pool.tensor(value, values_of(call, bound, name, value, place), written=written)
    if isinstance(value, tuple):
        return [
            _real(call, bound, name, item, pool, written=written, place=position) for position, item in enumerate(value)
        ]
    if name == "device":
        return pool.device
    if isinstance(value, str) and name.endswith("dtype"):
        return DTYPES[value] if value in DTYPES else getattr(torch, value.removeprefix("torch."))
    if isinstance(value, str) and name in ("layout", "memory_format"):
        return LAYOUTS["torch." + value.removeprefix("torch.")]
    if name == "pin_memory":
        return None
    return value


def _compare(call: Call, given: Any) -> None:
    """What came out is what was recorded. Only the main result: statistics beside it differ between cpu and GPU."""
    flat = [item for item in _flatten(given) if isinstance(item, torch.Tensor)]
    if flat and call.results:
        result, recorded = flat[0], call.results[0]
        shape, dtype = tuple(result.shape), DTYPE_NAMES.get(result.dtype)
        if (shape, dtype) != (recorded.shape, recorded.dtype):
            raise NotReplayable(f"{call.name} gave {dtype}{list(shape)} where {recorded} was recorded")


def _flatten(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [item for part in value for item in _flatten(part)]
    return [value]
