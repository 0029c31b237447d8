"""What a measurement was made on: the catalog's name of the GPU, driver, clocks, power, neighbours, host."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from catalog import store
from catalog.accelerator import Accelerator
from catalog.errors import RigplanError

Facts = dict[str, Any]

MEMORY_TOLERANCE = 0.1  # of the catalog's memory: reserves and ECC take less than that, another variant differs by more
BUSY_SHARE = 0.05  # of the GPU's memory in others' hands, or of its time, from which on timings are not to be trusted
OWN_BYTES = 1 << 30  # at most what this process's CUDA context takes before anything is allocated
WARM_C = 83.0  # GPUs of every line slow down a little above this
# NVML's reasons to run below the clock asked for that make a measurement a bad one, by bit.
THROTTLES = {
    0x0000000000000004: "power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000020: "thermal slowdown",
    0x0000000000000040: "hardware thermal slowdown",
    0x0000000000000080: "power brake",
}


class NoGpu(RigplanError):
    """There is nothing here to measure."""


def name_in_catalog(name: str, memory_bytes: int) -> str | None:
    """The catalog's name of the device that torch calls `name` and that has `memory_bytes`; None when it has none.

    The memory decides between variants that share a name, and refuses an entry of another size.
    """
    gib = memory_bytes / 2**30
    spellings = [f"{name} {size}gb" for size in range(round(gib), round(gib * (1 + MEMORY_TOLERANCE)) + 1)]
    for spelling in (name, *spellings):
        found = store.lookup(spelling)
        if found is not None and _same_size(store.accelerator(found.name), memory_bytes):
            return found.name
    return None


def _same_size(entry: Accelerator, memory_bytes: int) -> bool:
    return abs(memory_bytes - entry.usable_memory_bytes) <= MEMORY_TOLERANCE * entry.usable_memory_bytes


def skeleton(facts: Mapping[str, Any]) -> str:
    """A catalog entry to fill in for an unknown card: what the driver knows, and blanks for the datasheet's rest."""
    clock_hz = facts.get("sm_clock_limit_hz")
    entry = {
        "name": "-".join(str(facts["device"]).lower().removeprefix("nvidia ").split()),
        "label": facts["device"],
        "vendor": "NVIDIA",
        "compute_capability": facts["compute_capability"],
        "memory": f"{round(facts['memory_bytes'] / 2**30)} GiB",
        "torch_total": f"{facts['memory_bytes'] / 2**30:.1f} GiB",
        "memory_bandwidth": "FILL IN GB/s",
        "l2_cache": f"{facts['l2_bytes'] / 2**20:.0f} MiB",
        "sm_count": facts["sm_count"],
        "boost_clock": f"{clock_hz / 1e6:.0f} MHz" if clock_hz else "FILL IN MHz",
        "peak": dict.fromkeys(("fp32", "tf32", "fp16", "bf16"), "FILL IN TFLOP/s, dense"),
        "tdp_w": round(facts["power_limit_w"]) if facts.get("power_limit_w") else "FILL IN",
        "sources": ["FILL IN: where the rates are from"],
    }
    return yaml.safe_dump(entry, sort_keys=False)


def header(index: int = 0) -> Facts:
    """All that is known of this machine's GPU, as plain values; `warnings` says what makes its timings doubtful.

    Raises NoGpu without a GPU, and RigplanError, with a skeleton entry, for one the catalog does not know.
    """
    found = facts(index)
    if found["accelerator"] is None:
        raise RigplanError(
            f"the catalog has no {found['device']} with {found['memory_bytes'] / 2**30:.1f} GiB; "
            f"fill in this entry under catalog/data/accelerators, then calibrate again:\n{skeleton(found)}"
        )
    return found


def facts(index: int = 0) -> Facts:
    """As `header`, with `accelerator` None for a GPU that the catalog does not know. Raises NoGpu without one."""
    torch = _torch()
    properties = torch.cuda.get_device_properties(index)
    found: Facts = {
        "accelerator": name_in_catalog(properties.name, properties.total_memory),
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "free_bytes": torch.cuda.mem_get_info(index)[0],
        "sm_count": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        **host(),
        **_driver(index),
    }
    return found | {"warnings": warnings(found)}


def _torch() -> Any:
    """torch with a GPU it can see, or NoGpu."""
    try:
        import torch
    except ImportError:
        raise NoGpu("calibrate needs an NVIDIA GPU that torch can see; found no torch: install it with CUDA") from None
    if not torch.cuda.is_available():
        build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA in this build of it"
        raise NoGpu(
            f"calibrate needs an NVIDIA GPU that torch can see; found none (torch {torch.__version__}, {build}): "
            "run it on the GPU machine, or plan with a shipped profile"
        )
    return torch


def host() -> Facts:
    """The processor that issues the work, and the versions that decide how much work that is."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    return {"host_cpu": cpu, "host_cores": os.cpu_count(), "python": platform.python_version()}


def warnings(found: Mapping[str, Any]) -> list[str]:
    """What makes measurements on this GPU doubtful: neighbours, throttling, heat."""
    told = []
    used = (found["memory_bytes"] - found["free_bytes"] - OWN_BYTES) / found["memory_bytes"]
    if found.get("other_processes") or used > BUSY_SHARE:
        others = len(found.get("other_processes", ()))
        told.append(f"busy: {used:.0%} of the GPU's memory is in use ({others} other processes)")
    elif (found.get("utilization") or 0) > BUSY_SHARE:
        told.append(f"busy: the GPU was at work {found['utilization']:.0%} of the time before")
    if found.get("throttle_reasons"):
        told.append(f"throttled: {', '.join(found['throttle_reasons'])}")
    if (found.get("temperature_c") or 0) >= WARM_C:
        told.append(f"hot: {found['temperature_c']} degrees C")
    return told


def process_bytes() -> int | None:
    """Device memory that the driver counts to this process; None where it does not tell."""
    with _nvml() as nvml:
        if nvml is None:
            return None
        handle = nvml.nvmlDeviceGetHandleByIndex(_physical(0))
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                return int(process.usedGpuMemory)
    return None


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """pynvml, initialised, or None without it or a driver. What NVML does not know ends the block, quietly."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no library, no driver: all mean that nobody can be asked
        yield None
        return
    try:
        with contextlib.suppress(pynvml.NVMLError):
            yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _physical(index: int) -> int:
    """NVML counts all GPUs, torch only those that CUDA_VISIBLE_DEVICES names."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return int(visible[index]) if index < len(visible) and visible[index].strip().isdigit() else index


def _driver(index: int) -> Facts:
    """What the driver says of the GPU; a question it does not answer is left out."""
    found: Facts = {}
    with _nvml() as nvml:
        if nvml is None:
            return found
        handle = nvml.nvmlDeviceGetHandleByIndex(_physical(index))
        questions: dict[str, Any] = {
            "driver": nvml.nvmlSystemGetDriverVersion,
            "sm_clock_hz": lambda: 1e6 * nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "sm_clock_limit_hz": lambda: 1e6 * nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_hz": lambda: 1e6 * nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "pcie_gen": lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
            "pcie_lanes": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
            "throttle_reasons": lambda: throttles(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
            "other_processes": lambda: others(
                [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            ),
        }
        for name, ask in questions.items():
            with contextlib.suppress(nvml.NVMLError):
                answer = ask()
                found[name] = answer.decode() if isinstance(answer, bytes) else answer
    return found


def others(pids: list[int]) -> list[int]:
    """All but this process, which holds a context and so is listed, in a container by a foreign number."""
    return [pid for pid in pids if pid != os.getpid()] if os.getpid() in pids else pids[1:]


def throttles(bits: int) -> list[str]:
    """The words for NVML's bits, those that matter."""
    return [word for bit, word in THROTTLES.items() if bits & bit]
