"""What the host costs: seconds to issue an operator, a view, a backward node; waits; copies between host and device.

Measured by issuing many operators on tensors so small that the device is done with one long before the host sends the
next. Every number becomes a factor of the profile.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

OPERATORS = 400  # issued in one sample
SAMPLES = 9
ELEMENTS = 64  # of a tensor: any kernel on it is over in a few microseconds
FEW, MANY = 50, 450  # tensors of a multi-tensor launch; the difference gives the cost of one
COPY_BYTES = 256 << 20
COPIES = 5


@dataclass(frozen=True, slots=True)
class HostFactor:
    """A named cost of the host with its quartiles; `unit` is "s" or "B/s"."""

    name: str
    value: float
    low: float
    high: float
    unit: str = "s"

    def line(self) -> dict[str, Any]:
        """This factor as a line of a sweep's file."""
        return {"factor": self.name, "value": self.value, "unit": self.unit, "low": self.low, "high": self.high}


def factors(device: str = "cuda") -> Iterator[HostFactor]:
    """Every factor of this host, one after the other; copies only where there is a device to copy to."""
    yield from _operators(device)
    yield from _optimizer(device)
    yield from _waits(device)
    if device.startswith("cuda"):
        yield from _copies(device)


def _operators(device: str) -> Iterator[HostFactor]:
    x = torch.randn(8, 8, device=device)
    leaf = torch.randn(8, 8, device=device, requires_grad=True)
    weight = torch.randn(8, 8, device=device, requires_grad=True)
    module = _Nothing()
    functional = torch.nn.functional

    def many(once: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor) -> Callable[[], Any]:
        def issue() -> torch.Tensor:
            y = start
            for _ in range(OPERATORS):
                y = once(y)
            return y

        return issue

    with torch.no_grad():
        yield _per("host_no_grad_op_s", many(lambda y: y * 0.5, x), device)
        yield _per("host_module_call_s", many(module, x), device)
    yield _per("host_forward_op_s", many(functional.gelu, leaf), device)
    yield _per("host_forward_linear_s", many(lambda y: functional.linear(y, weight), leaf), device)
    yield _per("host_forward_norm_s", many(lambda y: functional.layer_norm(y, (8,)), leaf), device)
    yield _per("host_view_s", many(lambda y: y.transpose(0, 1), leaf), device)
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        low = leaf.to(torch.bfloat16)
        yield _per("host_autocast_linear_s", many(lambda y: functional.linear(y, weight), low), device)
    yield _backward("host_backward_op_s", many(functional.gelu, leaf), leaf, device)
    yield _backward("host_backward_view_s", many(lambda y: y.transpose(0, 1), leaf), leaf, device)


class _Nothing(torch.nn.Module):
    """A module that does nothing: what is left is the call itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def _optimizer(device: str) -> Iterator[HostFactor]:
    """Cost of a multi-tensor launch, apart from the tensors in it, and of each tensor."""
    few = [torch.randn(ELEMENTS, device=device) for _ in range(FEW)]
    many = [torch.randn(ELEMENTS, device=device) for _ in range(MANY)]
    launches = OPERATORS // 20
    with torch.no_grad():
        short = _samples(lambda: [torch._foreach_mul_(few, 0.999) for _ in range(launches)], device, launches)
        long = _samples(lambda: [torch._foreach_mul_(many, 0.999) for _ in range(launches)], device, launches)
    each = [max(0.0, (b - a) / (MANY - FEW)) for a, b in zip(sorted(short), sorted(long), strict=True)]
    fixed = [max(0.0, a - FEW * one) for a, one in zip(sorted(short), each, strict=True)]
    yield _factor("host_optimizer_tensor_s", each)
    yield _factor("host_optimizer_op_s", fixed)
    yield _adamw(device)


def _adamw(device: str) -> HostFactor:
    """Host seconds a parameter of torch's AdamW, foreach, whose Python groups and stacks all tensors first."""
    parameters = [torch.nn.Parameter(torch.randn(ELEMENTS, device=device)) for _ in range(MANY)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, foreach=True)
    return _factor("host_adamw_foreach_tensor_s", _samples(optimizer.step, device, MANY))


def _waits(device: str) -> Iterator[HostFactor]:
    one = torch.ones((), device=device)
    yield _per("host_synchronize_s", _waiting(device), device)
    yield _per("host_item_s", lambda: [one.item() for _ in range(OPERATORS)], device)


def _waiting(device: str) -> Callable[[], None]:
    def issue() -> None:
        for _ in range(OPERATORS):
            _wait(device)

    return issue


def _copies(device: str) -> Iterator[HostFactor]:
    there = torch.randint(0, 100, (COPY_BYTES,), dtype=torch.uint8, device=device)
    for name, pinned in (("pinned", True), ("pageable", False)):
        here = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=pinned)
        for direction, target, source in (("device_to_host", here, there), ("host_to_device", there, here)):
            rates = []
            for _ in range(COPIES + 1):
                _wait(device)
                began = time.perf_counter()
                target.copy_(source)
                _wait(device)
                rates.append(COPY_BYTES / (time.perf_counter() - began))
            yield _factor(f"{direction}_{name}_bytes_per_s", rates[1:], "B/s")


def _per(name: str, issue: Callable[[], Any], device: str) -> HostFactor:
    return _factor(name, _samples(issue, device, OPERATORS))


def _backward(name: str, forward: Callable[[], torch.Tensor], leaf: torch.Tensor, device: str) -> HostFactor:
    taken = []
    for _ in range(SAMPLES + 1):
        loss = forward()
        gradient = torch.ones_like(loss)
        _wait(device)
        began = time.perf_counter()
        torch.autograd.grad(loss, leaf, gradient)
        _wait(device)
        taken.append((time.perf_counter() - began) / OPERATORS)
    return _factor(name, taken[1:])


def _samples(issue: Callable[[], Any], device: str, operators: int) -> list[float]:
    """Seconds an operator, several times, the first run left out."""
    taken = []
    for _ in range(SAMPLES + 1):
        _wait(device)
        began = time.perf_counter()
        issue()
        _wait(device)
        taken.append((time.perf_counter() - began) / operators)
    return taken[1:]


def _factor(name: str, values: list[float], unit: str = "s") -> HostFactor:
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return HostFactor(name, median, low, high, unit)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
