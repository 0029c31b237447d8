"""Difference: two specs, or two saved answers, side by side, and what makes the change of the step and of the peak."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from catalog.errors import RigplanError
from planner.answer import Estimate, Plan
from planner.explained import explain
from planner.explanation import Explanation
from planner.padding import config_of
from planner.search import Progress
from planner.spec import Spec

# Of an answer's own fields, those that follow from others.
DERIVED = ("node", "gpus_per_node")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Changed(_Part):
    """A knob of the two, as text; empty where one has none."""

    name: str
    before: str
    after: str


class Share(_Part):
    """What one kind of work takes of a step in seconds, or one category of the peak in bytes."""

    name: str
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


class Difference(_Part):
    """`time` and `memory` sum to the two steps and peaks; they are empty where a saved answer has no rows."""

    before: Estimate
    after: Estimate
    knobs: list[Changed]
    time: list[Share] = []
    memory: list[Share] = []


def difference(before: str, after: str, *, profile: str = "", progress: Progress | None = None) -> Difference:
    """The best of each of two specs, or two answers that `--json` has printed; `-` reads one of them from stdin.

    Raises RigplanError for what is neither.
    """
    if before == after == "-":
        raise RigplanError("diff: standard input was given twice; wanted a file for one of the two")
    one, two = (_read(source, profile, progress) for source in (before, after))
    rows = one.explanation is not None and two.explanation is not None
    return Difference(
        before=one.estimate,
        after=two.estimate,
        knobs=_knobs(one, two),
        time=_time(one.explanation, two.explanation) if rows else [],
        memory=_memory(one, two),
    )


class _Side(_Part):
    estimate: Estimate
    explanation: Explanation | None = None
    asked: dict[str, Any] = {}  # model and data of a spec


def _read(source: str, profile: str, progress: Progress | None) -> _Side:
    """An answer of explain, estimate, fits or plan as it was saved; anything else is a spec."""
    saved = _saved(source)
    try:
        if isinstance(saved, Mapping) and "estimate" in saved:
            found = Explanation.model_validate(saved)
            return _Side(estimate=found.estimate, explanation=found)
        if isinstance(saved, Mapping) and "verdict" in saved:
            return _Side(estimate=Estimate.model_validate(saved))
        if isinstance(saved, Mapping) and "ranked" in saved:
            ranked = Plan.model_validate(saved).ranked
            if not ranked:
                raise RigplanError(f"{source}: the saved plan has nothing ranked")
            return _Side(estimate=ranked[0])
    except ValidationError as error:
        raise RigplanError(f"{source}: is no answer of this version ({error.error_count()} fields differ)") from None
    spec = Spec.load(saved if isinstance(saved, Mapping) and source == "-" else source)
    named = "standard input" if source == "-" else source
    told = progress and (lambda text: progress(f"{text} ({named})"))
    found = explain(spec, profile=profile, progress=told, advice=False)
    return _Side(estimate=found.estimate, explanation=found, asked=_asked(spec))


def _asked(spec: Spec) -> dict[str, Any]:
    """The model and the data of a spec; a model known by name with the config that it stands for."""
    asked = spec.model_dump(mode="json", include={"model", "data"})
    config = config_of(spec)
    if config is not None:
        asked["model"] |= {
            "name": spec.model.name or f"a {config.get('model_type', 'model')} by config",
            "config": config,
        }
    return asked


def _saved(source: str) -> Any:
    """What a file holds where it is JSON; what standard input holds in YAML too, for it is read but once."""
    if source == "-":
        import yaml

        try:
            return yaml.safe_load(sys.stdin.read())
        except (yaml.YAMLError, ValueError, RecursionError):
            raise RigplanError("standard input: is neither a spec nor a saved answer") from None
    try:
        return json.loads(Path(source).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None  # a spec, which says itself what is wrong with it


def _knobs(one: _Side, two: _Side) -> list[Changed]:
    """What was asked differently. A config need not say what another says, which is no difference then; an answer that
    was saved without its spec is compared by what it says itself."""
    both = bool(one.asked and two.asked)
    flat_one, flat_two = (dict(_flat(side, both)) for side in (one, two))
    said = {*flat_one} & {*flat_two}
    names = [
        name for name in dict.fromkeys([*flat_one, *flat_two]) if not name.startswith("model.config.") or name in said
    ]
    pairs = [(name, flat_one.get(name, ""), flat_two.get(name, "")) for name in names]
    return [Changed(name=name, before=low, after=high) for name, low, high in pairs if low != high]


def _flat(side: _Side, with_asked: bool) -> Iterable[tuple[str, str]]:
    """Everything that was asked, by its dotted name, as text."""
    estimate = side.estimate
    parts = {
        **(side.asked if with_asked else {}),
        "training": estimate.strategy.model_dump(mode="json"),
        "hardware": estimate.hardware.model_dump(mode="json", exclude=set(DERIVED)),
    }
    yield from _leaves(parts, "")


def _leaves(value: Any, name: str) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}".lstrip("."))
    elif value is not None and name not in ("model.attention", "model.task"):  # the strategy and the model say those
        yield name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _time(one: Explanation | None, two: Explanation | None) -> list[Share]:
    sides: list[dict[str, float]] = []
    for found in (one, two):
        sums: dict[str, float] = {}
        for row in found.time if found is not None else ():
            sums[row.kind] = sums.get(row.kind, 0.0) + row.seconds
        sides.append(sums)
    return _shares(sides[0], sides[1])


def _memory(one: _Side, two: _Side) -> list[Share]:
    """By category; what the allocator rounds up is the rest."""
    sides = []
    for side in (one, two):
        memory = side.estimate.memory
        rest = memory.peak_allocated_bytes - sum(memory.by_category.values())
        sides.append({**memory.by_category, "rounded up by the allocator": rest})
    return _shares(sides[0], sides[1])


def _shares(one: Mapping[str, float], two: Mapping[str, float]) -> list[Share]:
    """Each of either side, the largest change first."""
    shares = [Share(name=name, before=one.get(name, 0.0), after=two.get(name, 0.0)) for name in {**one, **two}]
    return sorted(shares, key=lambda item: -abs(item.change))


__all__ = ["Changed", "Difference", "Share", "difference"]
