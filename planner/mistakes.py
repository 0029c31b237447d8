"""Tell a spec's mistakes in plain words: one line each, what was found, what was wanted, what was perhaps meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

# pydantic's kind of error -> what was wanted; kinds that carry their own words are handled below
_WANTED: Mapping[str, str] = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "too_short": "at least one choice",
}


def told(error: ValidationError, raw: Mapping[str, Any], model: type[BaseModel]) -> str:
    """One line per mistake, the first by itself enough to act on."""
    lines = [_line(detail, raw, model) for detail in error.errors(include_url=False)]
    return "\n".join(dict.fromkeys(lines))


def _line(detail: ErrorDetails, raw: Mapping[str, Any], model: type[BaseModel]) -> str:
    place, kind, context = _place(detail["loc"], raw), detail["type"], detail.get("ctx", {})
    found = _shown(detail["input"])
    if kind == "extra_forbidden":
        known = _fields_at(detail["loc"], model)
        return f"{place}: unknown field{_meant(str(detail['loc'][-1]), known)}; wanted one of {', '.join(known)}"
    if kind == "invalid_key":
        return f"{place or 'spec'}: found the key {found}, wanted the name of a field"
    if kind == "missing":
        return f"{place}: missing; it must be given"
    if kind == "literal_error":
        words = re.findall(r"'([^']+)'", context["expected"])
        return f"{place}: found {found}, wanted {' or '.join(words)}{_meant(str(detail['input']), words)}"
    if kind == "said":
        return f"{place}: {detail['msg']}"
    return f"{place}: found {found}, wanted {_WANTED.get(kind, detail['msg'])}"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = str(value) if isinstance(value, int | float) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _meant(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word.lower(), known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _place(location: tuple[int | str, ...], raw: Any) -> str:
    """The field as the user wrote it: an index only where the user wrote a list."""
    parts: list[str] = []
    for step in location:
        if isinstance(step, int):
            if isinstance(raw, list | tuple) and step < len(raw):
                parts[-1:] = [f"{parts[-1]}[{step}]"] if parts else [f"[{step}]"]
                raw = raw[step]
        elif isinstance(raw, Mapping) and (step in raw or step == location[-1]):
            parts.append(step)
            raw = raw.get(step)
    return ".".join(parts)


def _fields_at(location: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    """The field names that the mapping around the last step of a location knows."""
    for step in location[:-1]:
        if isinstance(step, str) and step in model.model_fields:
            model = _model_in(model.model_fields[step].annotation) or model
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in getattr(annotation, "__args__", ()) if (found := _model_in(inner))), None)
