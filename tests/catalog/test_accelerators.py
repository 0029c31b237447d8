"""Every row of the catalog: dense, fp32-accumulate, physically sane, and with a source."""

from __future__ import annotations

import math

import pytest

from catalog import store
from catalog.accelerator import Accelerator
from catalog.errors import RigplanError
from catalog.units import GIB

ALL = store.accelerators()
BY_NAME = pytest.mark.parametrize("device", ALL, ids=lambda device: device.name)

# Dense FLOP per clock and SM, fp16/bf16 with fp32 accumulation, by class: the rates that reproduce the published peaks
# (V100 125.3, T4 65.1, 2080 Ti 53.8, A100 311.9, A6000 154.8, 3090 71.2, L4 121, 4090 165.2, H100 989, 5090 209.5).
FLOP_PER_CLOCK: dict[str, dict[str, float]] = {
    "volta": {"fp16": 1024},
    "turing_pro": {"fp16": 1024, "int8": 2048},
    "turing_gf": {"fp16": 512, "int8": 2048},
    "ga100": {"tf32": 1024, "fp16": 2048, "bf16": 2048, "int8": 4096},
    "ga10x_pro": {"tf32": 512, "fp16": 1024, "bf16": 1024, "int8": 2048},
    "ga10x_gf": {"tf32": 256, "fp16": 512, "bf16": 512},
    "ada_pro": {"tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048},
    "l40": {"tf32": 256, "fp16": 512, "bf16": 512, "fp8": 1024},
    "ada_gf": {"tf32": 256, "fp16": 512, "bf16": 512, "fp8": 1024},
    "hopper": {"tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192},
    "bw_gf": {"tf32": 256, "fp16": 512, "bf16": 512, "fp8": 1024, "fp4": 4096},
    "bw_pro": {"tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "fp4": 4096},
}
# The datasheets of these rate the chip at another clock than the boost clock in the table.
RATED_AT_ANOTHER_CLOCK = {
    "h800-sxm5-80gb": 1830 / 1755,
    "h800-pcie-80gb": 1620 / 1755,
    "h200-nvl": 1545 / 1785,
    "h100-nvl-94gb": 1545 / 1785,
}


def test_the_catalog_holds_at_least_119_devices_93_of_them_nvidia() -> None:
    assert len(ALL) >= 119
    assert sum(device.vendor == "NVIDIA" for device in ALL) >= 93


@BY_NAME
def test_every_device_has_a_source_and_a_16_bit_rate(device: Accelerator) -> None:
    assert device.sources
    assert all(source.strip() for source in device.sources)
    assert device.peak_flop_per_s.keys() & {"fp16", "bf16"}
    assert device.vendor
    assert device.label


@BY_NAME
def test_narrower_numbers_are_never_slower(device: Accelerator) -> None:
    peaks = device.peak_flop_per_s
    half = peaks.get("bf16", peaks.get("fp16", 0.0))
    if {"fp16", "bf16"} <= peaks.keys():
        assert peaks["fp16"] == peaks["bf16"]
    assert half > peaks.get("fp32", 0.0)
    assert peaks.get("fp8", half) >= half >= peaks.get("tf32", 0.0)
    assert peaks.get("fp4", math.inf) >= peaks.get("fp8", half)


RATED = [device for device in ALL if device.rate_class]


def test_most_devices_can_be_checked_against_their_clock() -> None:
    assert len(RATED) > 80


@pytest.mark.parametrize("device", RATED, ids=lambda device: device.name)
def test_peaks_are_sms_times_clock_times_the_dense_rate(device: Accelerator) -> None:
    assert device.sm_count is not None
    assert device.boost_clock_hz is not None
    clock_hz = device.boost_clock_hz * RATED_AT_ANOTHER_CLOCK.get(device.name, 1.0)
    for dtype, flop_per_clock in FLOP_PER_CLOCK[device.rate_class].items():
        expected = device.sm_count * clock_hz * flop_per_clock
        assert device.peak(dtype) == pytest.approx(expected, rel=0.03), dtype


@BY_NAME
def test_bandwidth_and_memory_are_sane(device: Accelerator) -> None:
    assert 8 * GIB * 0.7 <= device.memory_bytes <= 512 * GIB
    assert 150e9 < device.memory_bytes_per_s < 10e12
    ranges = {"HBM": (0.5e12, 9e12), "GDDR": (0.15e12, 2e12), "LPDDR": (0.1e12, 1e12)}
    for prefix, (low, high) in ranges.items():
        if device.memory_type.startswith(prefix):
            assert low < device.memory_bytes_per_s < high
    if device.link_bytes_per_s_per_direction is not None:
        assert 20e9 <= device.link_bytes_per_s_per_direction <= 1.3e12
    if device.tdp_w is not None:
        assert 50 <= device.tdp_w <= 1500


@BY_NAME
def test_usable_memory_is_a_little_less_than_the_box_says(device: Accelerator) -> None:
    assert 0.9 < device.usable_memory_bytes / device.memory_bytes < 1.0
    assert device.usable_memory_known in ("measured", "derived")
    assert device.usable_memory_source


# What users' out-of-memory messages and logs show as the total of the card, in GiB.
@pytest.mark.parametrize(
    ("name", "total_gib"),
    [
        ("rtx-4090", 23.6),
        ("rtx-3090", 23.7),
        ("rtx-5090", 31.4),
        ("v100-sxm2-32gb", 31.7),
        ("a10g", 22.0),
        ("a100-sxm4-40gb", 39.4),
        ("a100-sxm4-80gb", 79.15),
        ("h100-sxm5-80gb", 79.1),
        ("h200-sxm", 139.8),
        ("b200-sxm", 178.35),
        ("gb200", 184.0),
        ("gb300", 276.5),
        ("a40", 44.56),
    ],
)
def test_usable_memory_is_what_torch_reports(name: str, total_gib: float) -> None:
    assert store.accelerator(name).usable_memory_bytes / GIB == pytest.approx(total_gib, rel=0.005)


def test_a_t4_shows_between_14_6_and_15_6_gib() -> None:
    assert 14.6 < store.accelerator("t4").usable_memory_bytes / GIB < 15.6


def test_usable_shares_are_those_of_the_cards_where_torch_was_read() -> None:
    seen: dict[str, list[float]] = {}
    for device in ALL:
        if device.usable_memory_known == "measured":
            family = "hbm" if device.memory_type.startswith("HBM") else "gddr"
            family = "gddr-ecc" if device.name in ("a40", "a10g") else family
            seen.setdefault(family, []).append(device.usable_memory_bytes / device.memory_bytes)
    rules = store.load_yaml(store.DATA / "usable_memory.yaml")
    assert set(seen) == {"hbm", "gddr", "gddr-ecc"}
    for family, shares in seen.items():
        assert rules["of_marketed"][family] == pytest.approx(min(shares), abs=0.002), family


def test_contradicting_totals_take_the_smaller() -> None:
    b300 = store.accelerator("b300-sxm")
    assert b300.usable_memory_known == "derived"
    assert b300.usable_memory_bytes < 275040 * 2**20


# Dense rates with fp32 accumulation; the doubled figures are sparse or fp16-accumulate and appear in many tables.
@pytest.mark.parametrize(
    ("name", "dtype", "tflop_per_s"),
    [
        ("rtx-4090", "bf16", 165.2),
        ("rtx-3090", "bf16", 71.2),
        ("rtx-5090", "bf16", 209.5),
        ("rtx-a6000", "bf16", 154.8),
        ("a10g", "bf16", 70),
        ("a10", "bf16", 125),
        ("l40", "bf16", 181),
        ("l40s", "bf16", 362.05),
        ("a100-sxm4-80gb", "bf16", 311.9),
        ("h100-sxm5-80gb", "bf16", 989.4),
        ("h100-sxm5-80gb", "fp8", 1979),
        ("h100-pcie-80gb", "bf16", 756.5),
        ("h100-nvl-94gb", "bf16", 835.5),
        ("h20", "bf16", 148),
        ("b200-sxm", "bf16", 2250),
        ("v100-sxm2-16gb", "fp16", 125.3),
        ("t4", "fp16", 65.1),
        ("rtx-2080-ti", "fp16", 53.8),
        ("mi300x", "bf16", 1307.4),
    ],
)
def test_a_device_is_rated_at_its_dense_fp32_accumulate_rate(name: str, dtype: str, tflop_per_s: float) -> None:
    assert store.accelerator(name).peak(dtype) == pytest.approx(tflop_per_s * 1e12)


@pytest.mark.parametrize("device", [d for d in ALL if d.vendor == "NVIDIA"], ids=lambda device: device.name)
def test_bf16_is_native_on_ampere_and_newer_only(device: Accelerator) -> None:
    assert device.compute_capability is not None
    assert device.has_bf16 == (device.compute_capability >= (8, 0))


def test_asking_a_v100_for_bf16_says_what_it_has() -> None:
    with pytest.raises(
        RigplanError, match=r"v100-sxm2-16gb has no native bf16; its dense rates are .*fp16 125.3 TFLOP/s"
    ):
        store.accelerator("v100-sxm2-16gb").peak("bf16")


def test_tf32_without_the_hardware_is_fp32() -> None:
    t4 = store.accelerator("t4")
    assert t4.peak("tf32") == t4.peak("fp32") == pytest.approx(8.14e12)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(RigplanError, match=r"Unknown dtype 'bf61'.*Did you mean bf16"):
        store.accelerator("t4").peak("bf61")
