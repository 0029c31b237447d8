"""One accelerator: what its maker and its driver say it can do. Measured efficiency lives in profiles, not here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from catalog.errors import RigplanError, did_you_mean
from catalog.units import (
    flop_rate,
    parse_bandwidth,
    parse_bytes,
    parse_flop_rate,
    parse_frequency,
    parse_usd,
)

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
"""Dense peaks that may be known. fp16 and bf16 are the rates with fp32 accumulation, the ones training uses."""

UsableKnown = Literal["measured", "derived"]


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Facts of one device. Sizes in bytes, rates per second, bandwidths per device and per direction."""

    name: str
    vendor: str
    memory_bytes: int
    """What the box says, read as GiB: an "80 GB" card is an 80 GiB part."""
    usable_memory_bytes: int
    """What torch can have on the card, before its context: below ``memory_bytes``."""
    usable_memory_known: UsableKnown
    usable_memory_source: str
    memory_bytes_per_s: float
    peak_flop_per_s: dict[str, float]
    """Dense peaks by dtype; a dtype without hardware support (bf16 before Ampere) is absent."""
    architecture: str = ""
    compute_capability: tuple[int, int] | None = None
    form_factor: str = ""
    memory_type: str = ""
    l2_bytes: int | None = None
    sm_count: int | None = None
    boost_clock_hz: float | None = None
    rate_class: str = ""
    rate_method: str = ""
    link_name: str = "none"
    link_bytes_per_s_per_direction: float | None = None
    link_topology: str = ""
    pcie_gen: int | None = None
    pcie_lanes: int = 16
    tdp_w: float | None = None
    launch_date: str = ""
    launch_usd: float | None = None
    launch_usd_source: str = ""
    sources: tuple[str, ...] = ()
    crosscheck: str = ""
    notes: tuple[str, ...] = field(default=())
    label: str = ""
    """The name of the row in the data the entry was taken from."""

    @property
    def has_bf16(self) -> bool:
        """Native bf16: on NVIDIA, Ampere and newer. Older cards emulate it about ten times slower than fp16."""
        return "bf16" in self.peak_flop_per_s

    def peak(self, dtype: str) -> float:
        """Dense FLOP per second in ``dtype``; tf32 falls back to fp32 where the hardware has no tf32.

        Raises RigplanError when the device has no such rate.
        """
        peaks = self.peak_flop_per_s
        if dtype in peaks:
            return peaks[dtype]
        if dtype == "tf32" and "fp32" in peaks:
            return peaks["fp32"]
        if dtype not in DTYPES:
            hint = did_you_mean(dtype, DTYPES)
            raise RigplanError(f"Unknown dtype {dtype!r}; wanted one of {', '.join(DTYPES)}.{hint}")
        known = ", ".join(f"{key} {flop_rate(value)}" for key, value in peaks.items())
        raise RigplanError(f"{self.name} has no native {dtype}; its dense rates are {known}. Choose one of those.")

    def to_json(self) -> dict[str, Any]:
        """Plain data, the shape `rigplan gpus NAME --json` prints."""
        data: dict[str, Any] = {key: getattr(self, key) for key in Accelerator.__slots__}
        data["compute_capability"] = ".".join(map(str, self.compute_capability)) if self.compute_capability else None
        data["sources"], data["notes"] = list(self.sources), list(self.notes)
        data["has_bf16"] = self.has_bf16
        return data


_FIELDS = frozenset(
    {
        *(
            "name",
            "label",
            "vendor",
            "architecture",
            "compute_capability",
            "form_factor",
            "sources",
            "crosscheck",
            "notes",
        ),
        *("memory", "memory_type", "memory_bandwidth", "l2_cache", "nvidia_smi", "nvidia_smi_includes_reserve"),
        *("torch_total", "usable_memory_source", "sm_count", "boost_clock", "peak", "rate_class", "rate_method"),
        *("link", "pcie_gen", "pcie_lanes", "tdp_w", "launch_date", "launch_price", "launch_price_source"),
    }
)
_REQUIRED = ("name", "memory", "memory_bandwidth", "peak")


def usable_memory(entry: Mapping[str, Any], rules: Mapping[str, Any], where: str) -> tuple[int, UsableKnown, str]:
    """Bytes torch can have, how that is known, and from where.

    torch's own total when it was read on the card; else what nvidia-smi shows, less the driver's reserve where that is
    included in it; else the marketed size times the share seen on cards of the same memory class. The shares and what
    they were learned from are in ``usable_memory.yaml``.
    """
    source = str(entry.get("usable_memory_source", ""))
    smi_bytes = parse_bytes(entry["nvidia_smi"]) if "nvidia_smi" in entry else None
    if "torch_total" in entry:
        total_bytes = parse_bytes(entry["torch_total"])
        if smi_bytes is None or total_bytes <= smi_bytes * (1 + float(rules["rounding"])):
            return total_bytes, "measured", f"torch total memory: {source or where}"
    memory_class = _memory_class(entry, rules)
    if smi_bytes is not None:
        reserve = "with" if entry.get("nvidia_smi_includes_reserve", True) else "without"
        share = float(rules[f"of_nvidia_smi_{reserve}_reserve"][memory_class])
        return int(smi_bytes * share), "derived", f"{share} of the nvidia-smi total ({memory_class}); {source or where}"
    share = float(rules["of_marketed"][memory_class])
    return int(parse_bytes(entry["memory"]) * share), "derived", f"{share} of the marketed size ({memory_class})"


def _memory_class(entry: Mapping[str, Any], rules: Mapping[str, Any]) -> str:
    """``hbm``, ``gddr``, ``gddr-ecc`` or ``unified``: which share of the memory the driver keeps depends on it."""
    if entry["name"] in rules["ecc_cards"]:
        return "gddr-ecc"
    kind = str(entry.get("memory_type", "")).upper()
    prefixes: dict[str, str] = rules["class_of_type"]
    return next((name for prefix, name in prefixes.items() if kind.startswith(prefix)), str(rules["default_class"]))


def from_entry(entry: object, rules: Mapping[str, Any], where: str) -> Accelerator:
    """An Accelerator from one YAML mapping; ``where`` names the file in errors. Raises RigplanError on a bad entry."""
    if not isinstance(entry, dict):
        raise RigplanError(f"{where} holds {type(entry).__name__}, wanted a mapping with {', '.join(_REQUIRED)}.")
    for key in entry:
        if key not in _FIELDS:
            raise RigplanError(f"{where}: unknown field {key!r}.{did_you_mean(str(key), sorted(_FIELDS))}")
    missing = [key for key in _REQUIRED if key not in entry]
    if missing:
        raise RigplanError(f"{where}: {', '.join(missing)} missing; an accelerator needs {', '.join(_REQUIRED)}.")
    try:
        return _build(entry, rules, where)
    except RigplanError as error:
        raise RigplanError(f"{where}: {error}") from None
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise RigplanError(f"{where}: a field has the wrong form ({error}).") from None


def _build(entry: dict[str, Any], rules: Mapping[str, Any], where: str) -> Accelerator:
    peaks = {str(dtype): parse_flop_rate(rate) for dtype, rate in entry["peak"].items()}
    unknown = [dtype for dtype in peaks if dtype not in DTYPES]
    if unknown or not peaks:
        raise RigplanError(f"peak has {', '.join(unknown) or 'no dtype'}; wanted rates of {', '.join(DTYPES)}.")
    memory_bytes, bandwidth = parse_bytes(entry["memory"]), parse_bandwidth(entry["memory_bandwidth"])
    if not (memory_bytes > 0 and bandwidth > 0 and all(rate > 0 for rate in peaks.values())):
        raise RigplanError("memory, memory_bandwidth and every peak must be above zero.")
    usable_bytes, known, usable_source = usable_memory(entry, rules, where)
    link = entry.get("link") or {}
    capability = entry.get("compute_capability")
    return Accelerator(
        name=str(entry["name"]),
        label=str(entry.get("label", "")),
        vendor=str(entry.get("vendor", "")),
        architecture=str(entry.get("architecture", "")),
        compute_capability=_capability(capability),
        form_factor=str(entry.get("form_factor", "")),
        memory_bytes=memory_bytes,
        memory_type=str(entry.get("memory_type", "")),
        usable_memory_bytes=usable_bytes,
        usable_memory_known=known,
        usable_memory_source=usable_source,
        memory_bytes_per_s=bandwidth,
        l2_bytes=parse_bytes(entry["l2_cache"]) if "l2_cache" in entry else None,
        sm_count=int(entry["sm_count"]) if "sm_count" in entry else None,
        boost_clock_hz=parse_frequency(entry["boost_clock"]) if "boost_clock" in entry else None,
        peak_flop_per_s=peaks,
        rate_class=str(entry.get("rate_class", "")),
        rate_method=str(entry.get("rate_method", "")),
        link_name=str(link.get("name", "none")),
        link_bytes_per_s_per_direction=parse_bandwidth(link["per_direction"]) if "per_direction" in link else None,
        link_topology=str(link.get("topology", "")),
        pcie_gen=int(entry["pcie_gen"]) if "pcie_gen" in entry else None,
        pcie_lanes=int(entry.get("pcie_lanes", 16)),
        tdp_w=float(entry["tdp_w"]) if "tdp_w" in entry else None,
        launch_date=str(entry.get("launch_date", "")),
        launch_usd=parse_usd(entry["launch_price"]) if "launch_price" in entry else None,
        launch_usd_source=str(entry.get("launch_price_source", "")),
        sources=tuple(str(item) for item in entry.get("sources", ())) or (where,),
        crosscheck=str(entry.get("crosscheck", "")),
        notes=tuple(str(item) for item in entry.get("notes", ())),
    )


def _capability(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    major, _, minor = str(value).partition(".")
    return int(major), int(minor or 0)
