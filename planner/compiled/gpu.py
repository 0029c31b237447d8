"""A GPU that is not there, as far as Inductor asks: it schedules for CUDA and writes no kernel source.

Inductor decides what is fused, where a buffer goes and when it is freed by looking at graphs, and asks the device only
for a few of its properties. So the decisions can be had on any machine; Triton itself is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config, decomposition, scheduler
from torch._inductor.codegen.triton import TritonKernel, TritonScheduling
from torch._inductor.fx_passes import pad_mm, post_grad
from torch._inductor.runtime.hints import DeviceProperties

from planner.compiled.fused import bind

DEVICE = torch.device("cuda", 0)
# Multiprocessors of a GPU of each generation: they decide how a long reduction is split.
SM_COUNT = {(7, 0): 80, (8, 0): 108, (9, 0): 132, (10, 0): 148, (12, 0): 170}
# Multiply-adds an element moved, above which Inductor counts a product as bound by arithmetic on a large GPU.
ARITHMETIC_INTENSITY = 100
# What Inductor's defaults become where they would time candidates on the device or leave files behind.
SETTINGS: dict[str, Any] = {"graph_partition": False, "fx_graph_cache": False, "compile_threads": 1}


@dataclass(frozen=True, slots=True)
class Properties:
    """What Inductor reads of torch.cuda.get_device_properties."""

    major: int
    minor: int
    multi_processor_count: int
    name: str = "NVIDIA GPU"
    gcnArchName: str = ""
    warp_size: int = 32
    regs_per_multiprocessor: int = 65536
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 232448
    shared_memory_per_multiprocessor: int = 233472
    L2_cache_size: int = 50 * 2**20
    total_memory: int = 80 * 2**30


def _unnamed(schedule: Any, kernel: Any) -> str:
    return "fused"


@contextmanager
def inductor_for(capability: tuple[int, int], describe: Callable[[Any, Any], str] = _unnamed) -> Iterator[None]:
    """Inside, Inductor lowers for a GPU of that capability; `describe(node_schedule, kernel)` names each fused kernel
    where its source would have been written."""
    count = next(value for key, value in sorted(SM_COUNT.items(), reverse=True) if key <= capability)
    found = Properties(*capability, multi_processor_count=count)
    replaced: list[tuple[Any, str, Any]] = [
        (torch.cuda, "get_device_properties", lambda *_: found),
        (torch.cuda, "get_device_capability", lambda *_: capability),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
        (CudaInterface, "get_device_properties", staticmethod(lambda *_: found)),
        (CudaInterface, "get_compute_capability", staticmethod(lambda *_: capability[0] * 10 + capability[1])),
        (scheduler, "has_triton", lambda: True),
        (pad_mm, "has_triton", lambda: True),
        # These passes see tensors that still say cpu.
        (post_grad, "is_gpu", lambda _: True),
        (decomposition, "is_gpu", lambda _: True),
        (pad_mm, "check_device", lambda *_: True),
        (pad_mm, "should_pad", _padded),
        (torch._C, "_conv_determine_backend_memory_format", _convolution_format),
        (TritonKernel, "codegen_kernel", _no_source),
        (TritonScheduling, "codegen_node_schedule_with_kernel", _bound),
        (TritonScheduling, "define_kernel", lambda _, __, schedule, kernel: describe(schedule, kernel)),
    ]
    with ExitStack() as stack:
        for owner, name, value in replaced:
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(config.patch(**SETTINGS))
        DeviceProperties.create.cache_clear()  # it remembers a device, and here one follows another
        stack.callback(DeviceProperties.create.cache_clear)
        yield


_written = TritonScheduling.codegen_node_schedule_with_kernel


def _bound(scheduling: Any, schedule: Any, kernel: Any) -> None:
    """A kernel with its arguments; one that keeps partial sums for another learns of them only when it is written."""
    if getattr(kernel, "mix_order_reduction", False):
        _written(scheduling, schedule, kernel)
    else:
        bind(schedule, kernel)


def _padded(match: Any, one: Any, two: Any, operator: Any, input: Any = None) -> bool:
    """Whether a product's rows are padded until they are aligned. Inductor times both; for half precision and more
    arithmetic than memory traffic the padded one wins by far, and else the copies cost more than they save."""
    if not pad_mm.can_pad(one, two, operator, input):
        return False
    m, k, n = one.shape[-2], one.shape[-1], two.shape[-1]
    return one.dtype.itemsize == 2 and m * k * n / (m * k + k * n + m * n) > ARITHMETIC_INTENSITY


def _convolution_format(images: torch.Tensor, weight: torch.Tensor, _: Any) -> torch.memory_format:
    """How cuDNN lays out a convolution's result; a torch that was built without CUDA would say contiguous for all.
    Source: pytorch, aten/src/ATen/native/ConvUtils.h (cudnn_conv_suggest_memory_format)."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(images.ndim)
    if last is None or images.dtype == torch.float64:
        return torch.contiguous_format
    like = (images, weight)
    found = any(t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in like)
    return last if found else torch.contiguous_format


def _no_source(kernel: Any, name: str | None = None) -> str:
    kernel.triton_meta, kernel.inductor_meta = {}, {}
    return ""
