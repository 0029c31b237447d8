"""Profiles: what operators took on a device, and what that says about another device."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from catalog.accelerator import Accelerator
from catalog.errors import RigplanError, unreadable
from catalog.store import DATA, load_yaml
from catalog.store import accelerator as store_accelerator

PROFILES = DATA / "profiles"
Known = Literal["measured", "transferred", "prior"]
Numbers = NDArray[np.float64]


DTYPED_KINDS = frozenset({"matmul", "grouped_matmul", "convolution", "attention", "rnn"})
"""Kinds with a curve for each dtype: their arithmetic differs. The others move bytes and share one curve."""
ANY_DTYPE = "any"


PUBLISHED_STREAMS = ("pointwise/any",)
"""Curves of published fp32 streams, which tell another device nothing that its bandwidth ceiling does not."""


def curve_dtype(kind: str, dtype: str) -> str:
    """The dtype under which a kind's curve is kept."""
    return dtype if kind in DTYPED_KINDS else ANY_DTYPE


@dataclass(frozen=True, slots=True)
class Factor:
    """One named correction: host seconds per operator, allocator slack and the like."""

    value: float
    unit: str
    source: str = ""
    residual: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Operators of one kind and dtype timed alone on one device.

    `variant` indexes `variants`; `shape` holds the kind's integers; `work` is executed FLOP, bytes read, bytes written;
    `tuning` holds the fitted smoothness of the curve through them.
    """

    device: str
    kind: str
    dtype: str
    source: str
    variants: tuple[str, ...]
    variant: NDArray[np.int64]
    shape: Numbers
    work: Numbers
    seconds: Numbers
    tuning: Mapping[str, Any] = field(default_factory=dict)
    measured: bool = False

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.dtype}"

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray[Any]) -> Samples:
        """The samples at these rows."""
        return replace(
            self, variant=self.variant[rows], shape=self.shape[rows], work=self.work[rows], seconds=self.seconds[rows]
        )


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """`points` are exact: the text of a call to its seconds. `curves` are layers of samples by kind and dtype, each
    describing what the ones before it leave over: a relative's shapes first, the device's own last."""

    name: str
    accelerator: str
    known: Known
    method_version: int
    provenance: Mapping[str, Any]
    points: Mapping[str, float]
    curves: Mapping[str, tuple[Samples, ...]]
    factors: Mapping[str, Factor]
    residuals: Mapping[str, float]

    def factor(self, name: str) -> float:
        """The value of a factor. Raises RigplanError when the profile has none of that name."""
        if name not in self.factors:
            raise RigplanError(f"Profile {self.name} has no factor {name!r}; it has {', '.join(self.factors)}.")
        return self.factors[name].value


def load(path: Path) -> Profile:
    """A profile from its JSON file, gzipped or not. Raises RigplanError when it cannot be read as one."""
    try:
        raw = path.read_bytes()
        data = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        return from_json(data)
    except FileNotFoundError:
        raise RigplanError(f"There is no profile {str(path)!r}.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else unreadable(error)
        raise RigplanError(f"{str(path)!r} is not a profile ({why}); `rigplan calibrate run` writes one.") from None


def save(profile: Profile, path: Path) -> None:
    """Write a profile; a name that ends in .gz is compressed, reproducibly."""
    text = json.dumps(to_json(profile), separators=(",", ":"), sort_keys=True).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text + b"\n")


def from_json(data: Mapping[str, Any]) -> Profile:
    curves: dict[str, tuple[Samples, ...]] = {}
    for item in data["curves"]:
        samples = _samples(item, data["known"] == "measured")
        curves[samples.key] = (*curves.get(samples.key, ()), samples)
    return Profile(
        name=str(data["name"]),
        accelerator=str(data["accelerator"]),
        known=data["known"],
        method_version=int(data["method_version"]),
        provenance=dict(data["provenance"]),
        points={str(key): float(value) for key, value in data["points"].items()},
        curves=curves,
        factors={str(key): Factor(**value) for key, value in data["factors"].items()},
        residuals={str(key): float(value) for key, value in data["residuals"].items()},
    )


def to_json(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "accelerator": profile.accelerator,
        "known": profile.known,
        "method_version": profile.method_version,
        "provenance": dict(profile.provenance),
        "points": {key: _short(value) for key, value in profile.points.items()},
        "curves": [_plain(samples) for layers in profile.curves.values() for samples in layers],
        "factors": {
            key: {"value": item.value, "unit": item.unit, "source": item.source, "residual": item.residual}
            for key, item in profile.factors.items()
        },
        "residuals": dict(profile.residuals),
    }


@cache
def own(name: str) -> Profile | None:
    """The shipped profile of a device by its catalog name, or None."""
    for ending in (".json", ".json.gz"):
        path = PROFILES / f"{name}{ending}"
        if path.exists():
            return load(path)
    return None


@cache
def prior_factors() -> dict[str, Factor]:
    """Named corrections to use until a device has its own."""
    data = load_yaml(PROFILES / "factors.yaml")
    return {str(name): Factor(**item) for name, item in data.items()}


@cache
def _relatives() -> dict[str, Any]:
    data: dict[str, Any] = load_yaml(PROFILES / "relatives.yaml")
    return data


def relatives(accelerator: Accelerator) -> tuple[str, ...]:
    """Devices whose shapes stand in for this one's, nearest first."""
    data = _relatives()
    chain = data.get(accelerator.rate_class) or data.get(accelerator.architecture) or data["default"]
    return tuple(str(name) for name in (*chain, *data["default"]))


def resolve(accelerator: Accelerator, profile: str = "") -> tuple[Profile, Known]:
    """The profile to price this device with: a file's, its own, or one put together from its relatives.

    Every kind and dtype that any relative was timed in gets a curve: a measured relative's first, then that of the
    nearest one of the same compute capability, then the device's own samples, each on top of those below.
    Raises RigplanError when `profile` names a file that is none.
    """
    mine = load(Path(profile)) if profile else own(accelerator.name)
    own_curves = mine.curves if mine else {}
    chain = [found for name in relatives(accelerator) if (found := own(name)) is not None]
    chain.sort(key=lambda found: found.known != "measured")
    curves: dict[str, tuple[Samples, ...]] = {}
    for found in chain:
        for key, layers in found.curves.items():
            if key in PUBLISHED_STREAMS and found.known != "measured":
                continue
            if key not in curves and found.accelerator != accelerator.name:
                curves[key] = layers[-1:]
    near = next((found for found in chain if found.known != "measured" and _alike(found, accelerator)), None)
    for key, layers in _twinned(near.curves if near else {}).items():
        if key not in PUBLISHED_STREAMS and key not in own_curves and curves[key][0].device != layers[-1].device:
            curves[key] = (*curves[key], *layers[-1:])
    for key, layers in own_curves.items():
        below = () if mine and mine.known == "measured" else curves.get(key, ())
        curves[key] = (*below, *layers[-1:])
    known: Known = "prior"
    if mine and mine.known == "measured" and mine.accelerator == accelerator.name:
        known = "measured"
    elif any(found.known == "measured" for found in chain) and accelerator.vendor == "NVIDIA":
        known = "transferred"
    factors = {**prior_factors(), **(_measured_factors(chain)), **(mine.factors if mine else {})}
    built = Profile(
        name=mine.name if mine else f"{accelerator.name} from {', '.join(found.name for found in chain[:2])}",
        accelerator=accelerator.name,
        known=known,
        method_version=mine.method_version if mine else max((item.method_version for item in chain), default=0),
        provenance=mine.provenance if mine else {"relatives": [found.name for found in chain]},
        points=mine.points if mine else {},
        curves=curves,
        factors=factors,
        residuals=mine.residuals if mine else {},
    )
    return built, known


def _twinned(curves: Mapping[str, tuple[Samples, ...]]) -> dict[str, tuple[Samples, ...]]:
    """With the curves of bf16 standing for fp16 where that was not timed: on one device both run the same kernels.

    Not the other way round: published fp16 timings are older, of libraries that were slower.
    """
    twins = {f"{key.removesuffix('bf16')}f16": layers for key, layers in curves.items() if key.endswith("/bf16")}
    return {**twins, **curves}


def _alike(found: Profile, accelerator: Accelerator) -> bool:
    other = store_accelerator(found.accelerator)
    return other.name != accelerator.name and other.compute_capability == accelerator.compute_capability


def _measured_factors(chain: list[Profile]) -> Mapping[str, Factor]:
    return next((found.factors for found in chain if found.known == "measured"), {})


def _samples(item: Mapping[str, Any], measured: bool) -> Samples:
    seconds = np.asarray(item["seconds"], dtype=np.float64)
    return Samples(
        device=str(item["device"]),
        kind=str(item["kind"]),
        dtype=str(item["dtype"]),
        source=str(item["source"]),
        variants=tuple(item["variants"]),
        variant=np.asarray(item["variant"], dtype=np.int64),
        shape=np.asarray(item["shape"], dtype=np.float64).reshape(len(seconds), -1),
        work=np.asarray(item["work"], dtype=np.float64).reshape(len(seconds), 3),
        seconds=seconds,
        tuning=dict(item.get("tuning", {})),
        measured=measured,
    )


def _plain(samples: Samples) -> dict[str, Any]:
    return {
        "device": samples.device,
        "kind": samples.kind,
        "dtype": samples.dtype,
        "source": samples.source,
        "variants": list(samples.variants),
        "variant": samples.variant.tolist(),
        "shape": [[int(value) for value in row] for row in samples.shape],
        "work": [[int(value) for value in row] for row in samples.work],
        "seconds": [_short(value) for value in samples.seconds],
        "tuning": dict(samples.tuning),
    }


def _short(value: float) -> float:
    """Five significant digits: finer than any measurement, and a third of the file."""
    return float(f"{value:.5g}")
