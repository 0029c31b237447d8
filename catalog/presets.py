"""Models that rigplan knows by name: their configs, usual sizes and published parameter counts, as data.

One file a family in `data/presets/`: keys of the family (`task`, `config`, `source`, usual lengths) hold for all its
presets, and a preset adds or overrides. No torch here: `planner/models.py` builds what these configs describe.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from catalog.errors import RigplanError


@dataclass(frozen=True, slots=True)
class Preset:
    """One model: what to build and what is published about it.

    `parameters` counts the built model (tied weights once); `published_parameters` is the figure of `source`, of the
    whole model or of its backbone (`published_of`), `exact` or a rounded `approx` one (`published`). Lengths are
    tokens; for speech, samples or frames; `image_size` is pixels.
    """

    name: str
    family: str
    hub: str
    aliases: tuple[str, ...]
    task: str
    config: Mapping[str, Any]
    parameters: int
    published_parameters: int
    published: str
    published_of: str
    source: str
    sequence_length: int | None
    target_length: int | None
    image_size: int | None


def _key(name: str) -> str:
    """A name without case and punctuation, so that 'Llama 2 7B' and 'llama-2-7b' are one; dots of versions stay."""
    return re.sub(r"[^a-z0-9/.]", "", name.lower())


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _read(family: Mapping[str, Any]) -> list[Preset]:
    shared = {key: family[key] for key in family if key not in ("family", "presets")}
    presets = []
    for name, own in family["presets"].items():
        entry = _merge(shared, own)
        presets.append(
            Preset(
                name=name,
                family=family["family"],
                hub=entry.get("hub", ""),
                aliases=tuple(entry.get("aliases", ())),
                task=entry["task"],
                config=entry["config"],
                parameters=entry["parameters"],
                published_parameters=entry.get("published_parameters", entry["parameters"]),
                published=entry.get("published", "exact"),
                published_of=entry.get("published_of", "model"),
                source=entry["source"],
                sequence_length=entry.get("sequence_length"),
                target_length=entry.get("target_length"),
                image_size=entry.get("image_size"),
            )
        )
    return presets


@cache
def presets() -> tuple[Preset, ...]:
    """Every preset, family by family."""
    folder = files("catalog") / "data" / "presets"
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    return tuple(preset for file in found for preset in _read(json.loads(file.read_text(encoding="utf-8"))))


@cache
def _index() -> dict[str, Preset]:
    """Normalised spelling to preset; a preset's own name wins over another's alias."""
    index: dict[str, Preset] = {}
    for preset in presets():
        for spelling in (preset.hub, *preset.aliases):
            if spelling:
                index.setdefault(_key(spelling), preset)
    index.update({_key(preset.name): preset for preset in presets()})
    return index


def lookup(name: str) -> Preset | None:
    """The preset of this name or hub id in any case and punctuation, or None."""
    return _index().get(_key(name))


def nearest(name: str, count: int = 3) -> list[str]:
    """Names of the presets spelled most like `name`."""
    tail = _key(name).rsplit("/", 1)[-1]
    close = get_close_matches(tail, _index(), n=4 * count, cutoff=0.5) or [key for key in _index() if tail in key]
    return list(dict.fromkeys(_index()[key].name for key in close))[:count]


def find(name: str) -> Preset:
    """The preset of this name or hub id; RigplanError with the nearest names when there is none."""
    preset = lookup(name)
    if preset is not None:
        return preset
    near = nearest(name)
    hint = f"did you mean {' or '.join(near)}?" if near else "see `rigplan models`"
    raise RigplanError(f"unknown model '{name}': {hint} (or give model.config or model.module)")
