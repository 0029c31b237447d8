"""Runs a compiled program on fake tensors: its own allocations and deaths, while kernels only leave a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from planner.call import Call
from planner.compiled.lower import Program
from planner.recorder import Recorder

Runner = Callable[[list[Any]], Any]


def runner(program: Program, recorder: Recorder) -> Runner:
    """The program as a function of a list of inputs, which it empties: what is not needed dies at once."""
    start = program.source.index("def call(args):")
    names: dict[str, Any] = {
        "torch": _Torch(),
        "aten": torch.ops.aten,
        "inductor_ops": torch.ops.inductor,
        "extern_kernels": _Libraries(recorder),
        "empty_strided_cuda": _empty,
        "empty_strided_cpu": _empty,
        "reinterpret_tensor": _reinterpreted,
        "assert_size_stride": _nothing,
        "assert_alignment": _nothing,
        "get_raw_stream": _nothing,
        "device": lambda *_, **__: torch.device("cpu"),
        "inf": float("inf"),
        "nan": float("nan"),
        **program.constants,
        **{name: _Kernel(call, recorder) for name, call in program.kernels.items()},
    }
    exec(compile(program.source[start:], "<compiled>", "exec"), names)
    call: Runner = names["call"]

    def run(inputs: list[Any]) -> Any:
        recorder.compiled(True)
        try:
            return call(inputs)
        finally:
            recorder.compiled(False)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class _Kernel:
    """A fused kernel: its launch is its record."""

    def __init__(self, call: Call, recorder: Recorder) -> None:
        self.call, self.recorder = call, recorder

    def run(self, *_: Any, **__: Any) -> None:
        self.recorder.launch(self.call)


class _Libraries:
    """What Inductor leaves to libraries: products that write into a buffer at hand, and convolutions."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def run(*args: Any, out: torch.Tensor | None = None, **kwargs: Any) -> Any:
            if out is None:
                return getattr(torch, name)(*args, **kwargs)
            plain = {
                key: value for key, value in kwargs.items() if value != 1
            }  # alpha and beta, as eager leaves them out
            self.recorder.launched(f"{name}.default", args, plain, (out,))
            return None

        return run


class _NoDevice:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class _Cuda:
    _DeviceGuard = staticmethod(lambda _: _NoDevice())
    set_device = staticmethod(lambda _: None)


class _Torch:
    """torch, whose device is always the current one."""

    cuda = _Cuda()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _nothing(*_: Any, **__: Any) -> int:
    return 0


def _empty(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cpu")


def _reinterpreted(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> torch.Tensor:
    """`offset` counts from the tensor's own start."""
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)
