"""What a device really reaches at best: published ceilings, or its class's usual share of the datasheet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from catalog.accelerator import DTYPES, Accelerator
from catalog.store import DATA, load_yaml
from catalog.units import parse_bandwidth, parse_flop_rate

NATIVE_BF16 = "bf16"
_STAND_IN = {"tf32": "fp32", "fp16": "fp32", "bf16": "fp16", "fp8": "bf16", "fp4": "fp8", "int8": "fp16"}
"""The dtype whose rate a device without the wanted one falls back to."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Best sustained rates of one device: FLOP/s by dtype and bytes/s. `source` names who published them."""

    flop_per_s: dict[str, float]
    memory_bytes_per_s: float
    source: str

    def rate(self, dtype: str) -> float:
        """FLOP/s in `dtype` (a name of the catalog), falling back to the dtype the hardware would use instead."""
        while dtype not in self.flop_per_s and dtype in _STAND_IN:
            dtype = _STAND_IN[dtype]
        return self.flop_per_s.get(dtype) or next(iter(self.flop_per_s.values()))


def throttling(accelerator: Accelerator, dtype: str) -> float:
    """How much of what the measured device loses in long runs to its power limit this one loses; 1 where unknown.

    A ceiling that was read on the device was read under its power limit, so that less is left to lose.
    """
    data = _data()
    a_watt = data["a_watt"].get(accelerator.rate_class, {}).get(dtype)
    if a_watt is None or not accelerator.tdp_w:
        return 1.0
    limits = data["throttling"]
    headroom = parse_flop_rate(a_watt) * accelerator.tdp_w / ceiling(accelerator).rate(dtype)
    free = float(limits["free_headroom"])
    lost = (free - headroom) / (free - float(limits["measured_headroom"]))
    read = _halves(dtype) & data["devices"].get(accelerator.name, {}).keys()
    return max(min(lost, float(limits["most_where_read"])) if read else lost, 0.0)


def _halves(dtype: str) -> frozenset[str]:
    """The dtypes whose rate is this one's: both 16-bit ones run through the same units."""
    return frozenset({"fp16", "bf16"} if dtype in ("fp16", "bf16") else {dtype})


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = load_yaml(DATA / "profiles" / "ceilings.yaml")
    return data


@cache
def _ecc_cards() -> frozenset[str]:
    """Cards whose GDDR6 holds its check bits beside the data, so that each stream moves them too."""
    return frozenset(load_yaml(DATA / "usable_memory.yaml")["ecc_cards"])


def ceiling(accelerator: Accelerator) -> Ceiling:
    """The device's own published rates first, its class's share of the peak for the others."""
    data = _data()
    published = dict(data["devices"].get(accelerator.name, {}))
    shares = data["shares"].get(accelerator.rate_class, data["shares"]["default"])
    source = str(data["sources"].get(published.pop("source", ""), "share of the peak usual for the class"))
    memory = published.pop("memory", None)
    stream = data["ecc_memory"]["value"] if accelerator.name in _ecc_cards() else shares["memory"]
    bytes_per_s = parse_bandwidth(memory) if memory else accelerator.memory_bytes_per_s * float(stream)
    rates = {str(dtype): parse_flop_rate(rate) for dtype, rate in published.items()}
    known = [dtype for dtype in rates if dtype in accelerator.peak_flop_per_s]
    for dtype in DTYPES:
        peak = accelerator.peak_flop_per_s.get(dtype)
        if dtype in rates or peak is None:
            continue
        nearest = _STAND_IN.get(dtype)
        if dtype == "bf16" and "fp16" in known:
            rates[dtype] = rates["fp16"]
        elif dtype == "fp16" and NATIVE_BF16 in known:
            rates[dtype] = rates[NATIVE_BF16]
        else:
            rates[dtype] = peak * float(shares.get(dtype, shares.get(nearest, data["shares"]["default"]["fp16"])))
    for dtype, a_watt in data["a_watt"].get(accelerator.rate_class, {}).items():
        if dtype in rates and not _halves(dtype) & published.keys() and accelerator.tdp_w:
            rates[dtype] = min(rates[dtype], parse_flop_rate(a_watt) * accelerator.tdp_w)
    if NATIVE_BF16 not in rates and accelerator.vendor == "NVIDIA" and "fp32" in rates:
        rates[NATIVE_BF16] = rates["fp32"] * float(data["emulated_bf16_of_fp32"]["value"])
    # A ceiling above the datasheet (clocks above the rated boost) is kept: the physical floor uses the larger.
    return Ceiling(rates, bytes_per_s, source)
