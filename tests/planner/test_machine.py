"""Machines: the catalog's knowledge of a hardware choice."""

from __future__ import annotations

import pytest

from catalog.errors import RigplanError
from planner import machine as machines
from planner.strategy import HardwareChoice

GIB = 1 << 30
MIB = 1 << 20


def test_a_machine_knows_its_device_node_and_usable_memory() -> None:
    machine = machines.resolve(HardwareChoice("H200-SXM-141GB", count=8))
    assert machine.accelerator.name == "h200-sxm"
    assert machine.node.gpus_per_node == 8
    assert machine.usable_bytes == pytest.approx(139.8 * GIB, rel=1e-3)  # torch's total on 66 real runs
    assert machine.device.capability == (9, 0)


def test_the_context_of_a_hopper_is_what_was_measured() -> None:
    low, likely, high = machines.resolve(HardwareChoice("h200-sxm")).context_bytes
    assert low < likely < high
    assert likely == pytest.approx(770 * MIB)  # tests/measured/h200_training.jsonl


@pytest.mark.parametrize("gpu", ["v100-sxm2-32gb", "t4", "a100-sxm4-80gb", "rtx-3090", "rtx-4090", "b200-sxm"])
def test_the_context_of_other_generations_is_published_and_has_a_wide_range(gpu: str) -> None:
    """0.3 to 1 GB a process (pytorch issues 28394 and 37250)."""
    low, likely, high = machines.resolve(HardwareChoice(gpu)).context_bytes
    assert low <= 0.3 * GIB < likely < 1.0 * GIB <= high


def test_several_gpus_add_the_buffers_of_nccl() -> None:
    one, two, eight = (machines.resolve(HardwareChoice("h200-sxm", count=n)).context_bytes[1] for n in (1, 2, 8))
    assert one < two < eight


def test_a_memory_limit_is_what_the_allocator_may_reserve() -> None:
    machine = machines.resolve(HardwareChoice("h200-sxm", memory_limit_bytes=39 * GIB))
    assert machine.usable_bytes - machine.context_bytes[1] == 39 * GIB


def test_a_node_of_other_gpus_is_refused() -> None:
    with pytest.raises(RigplanError, match="dgx-h200"):
        machines.resolve(HardwareChoice("a100-sxm4-80gb", node="dgx-h200"))


def test_the_h200_is_priced_by_its_own_measurements_and_others_are_not() -> None:
    assert machines.resolve(HardwareChoice("h200-sxm")).known == "measured"
    assert machines.resolve(HardwareChoice("rtx-3090")).known in ("transferred", "prior")
