"""Which GPU this is and what speaks against timing it, from names and numbers that drivers and torch have reported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import yaml

from calibrate import device
from calibrate.device import NoGpu
from catalog.errors import RigplanError

GIB = 2**30

# torch's name and GiB (torch.cuda.get_device_properties), and the entry it is. 143,155 MiB is an H200's total in torch.
KNOWN = [
    ("NVIDIA H200", 139.8, "h200-sxm"),
    ("NVIDIA H100 80GB HBM3", 79.1, "h100-sxm5-80gb"),
    ("NVIDIA H100 PCIe", 79.1, "h100-pcie-80gb"),
    ("NVIDIA A100-SXM4-40GB", 39.4, "a100-sxm4-40gb"),
    ("NVIDIA A100-SXM4-80GB", 79.3, "a100-sxm4-80gb"),
    ("NVIDIA GeForce RTX 4090", 23.6, "rtx-4090"),
    ("Tesla T4", 14.6, "t4"),
]


@pytest.mark.parametrize(("name", "gib", "entry"), KNOWN)
def test_a_gpu_is_known_by_the_name_torch_gives_it(name: str, gib: float, entry: str) -> None:
    assert device.name_in_catalog(name, int(gib * GIB)) == entry


@pytest.mark.parametrize(
    ("name", "gib", "entry"),
    [
        ("NVIDIA GeForce RTX 3080", 9.8, "rtx-3080-10gb"),
        ("NVIDIA GeForce RTX 3080", 11.7, "rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 7.6, "rtx-4060-ti-8gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 15.6, "rtx-4060-ti-16gb"),
    ],
)
def test_memory_tells_variants_of_one_name_apart(name: str, gib: float, entry: str) -> None:
    assert device.name_in_catalog(name, int(gib * GIB)) == entry


def test_a_known_name_with_another_memory_is_another_card() -> None:
    assert device.name_in_catalog("NVIDIA H200", 79 * GIB) is None


def facts(**over: Any) -> dict[str, Any]:
    return {
        "accelerator": None,
        "device": "NVIDIA Foo 9000",
        "compute_capability": "12.1",
        "memory_bytes": 31 * GIB,
        "free_bytes": int(30.5 * GIB),
        "sm_count": 99,
        "l2_bytes": 64 * 2**20,
        "sm_clock_limit_hz": 2.4e9,
        "power_limit_w": 450.0,
        "other_processes": [],
    } | over


def test_an_unknown_card_gets_an_entry_to_fill_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "facts", lambda index: facts())
    with pytest.raises(RigplanError, match=r"no NVIDIA Foo 9000 with 31.0 GiB; fill in this entry") as raised:
        device.header()
    entry = yaml.safe_load(str(raised.value).partition("\n")[2])
    assert entry["name"] == "foo-9000"
    assert entry["memory"] == "31 GiB"
    assert entry["boost_clock"] == "2400 MHz"
    assert entry["tdp_w"] == 450
    assert "FILL IN" in entry["peak"]["bf16"]


def test_a_skeleton_that_was_filled_in_is_a_catalog_entry(tmp_path: Any) -> None:
    entry = yaml.safe_load(device.skeleton(facts()))
    entry |= {"memory_bandwidth": "1000 GB/s", "peak": dict.fromkeys(entry["peak"], "100 TFLOP/s"), "sources": ["here"]}
    path = tmp_path / "foo.yaml"
    path.write_text(yaml.safe_dump(entry), encoding="utf-8")
    from catalog import store

    found = store.find(str(path))
    assert found.sm_count == 99
    assert found.peak_flop_per_s["bf16"] == 1e14


@pytest.mark.parametrize(
    ("over", "told"),
    [
        ({"other_processes": [7, 8]}, "2 other processes"),
        ({"free_bytes": 10 * GIB}, "busy: 65% of the GPU's memory is in use"),
        ({"utilization": 0.9}, "at work 90% of the time"),
        ({"throttle_reasons": ["power cap"]}, "throttled: power cap"),
        ({"temperature_c": 88}, "hot: 88 degrees C"),
    ],
)
def test_what_makes_timings_doubtful_is_said(over: dict[str, Any], told: str) -> None:
    assert any(told in warning for warning in device.warnings(facts(**over)))


def test_an_idle_gpu_raises_no_doubt() -> None:
    assert device.warnings(facts(utilization=0.0, throttle_reasons=[], temperature_c=34)) == []


def test_this_process_is_no_neighbour_even_under_a_containers_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.os, "getpid", lambda: 12)
    assert device.others([12, 99]) == [99]
    assert device.others([4711]) == []
    assert device.others([4711, 99]) == [99]


def test_idle_and_software_clock_settings_are_no_throttling() -> None:
    assert device.throttles(0x1 | 0x2) == []
    assert device.throttles(0x4 | 0x20) == ["power cap", "thermal slowdown"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_one_line_says_what_is_needed() -> None:
    with pytest.raises(NoGpu, match="calibrate needs an NVIDIA GPU that torch can see; found none") as raised:
        device.header()
    assert isinstance(raised.value, RigplanError)
    assert "\n" not in str(raised.value)


def test_the_host_is_named_with_its_cores() -> None:
    assert device.host()["host_cores"] >= 1
    assert device.host()["host_cpu"]
