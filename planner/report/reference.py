"""The reference of the spec, written from the models that check it: fields, what they take, defaults and meaning."""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator

from planner.fields import SpecPart
from planner.spec import Spec

HEAD = """# The spec

Written by `rigplan spec`; `rigplan spec --json` prints the same as a JSON schema, which editors can check a file with.

A spec is YAML. Fields that are not listed are refused. Where a field takes a list, each of its values is a choice:
one combination is an estimate, several are a plan. `-` in place of a file reads the spec from standard input."""
# How pydantic's own types read.
WORDS = {"str": "text", "int": "a whole number", "float": "a number", "bool": "`true` or `false`", "date": "a date"}


def page() -> str:
    """The reference as Markdown."""
    return "\n".join([HEAD, *_section("", Spec)])


def _section(path: str, part: type[SpecPart]) -> Iterator[str]:
    comments = _comments(part)
    hints = get_type_hints(part, include_extras=True)
    below: list[tuple[str, type[SpecPart]]] = []
    yield f"\n## {path or 'At the top'}\n"
    yield inspect.cleandoc(part.__doc__ or "").replace(". None =", "; absent:").replace("None", "absent")
    yield "\n| field | takes | default | meaning |\n|---|---|---|---|"
    for name, field in part.model_fields.items():
        takes, nested = _takes(hints[name])
        below += [(f"{path}.{name}".lstrip("."), item) for item in nested]
        default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
        cells = [f"`{name}`", takes, default, comments.get(name, "").replace("None =", "absent:")]
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    for where, item in below:
        yield from _section(where, item)


def _takes(hint: Any) -> tuple[str, list[type[SpecPart]]]:
    """What a field takes, in words, and the parts below it."""
    wanted = ""
    while get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        for extra in extras:
            if isinstance(extra, BeforeValidator):
                wanted = str(inspect.getclosurevars(extra.func).nonlocals.get("wanted", "")) or wanted
    if get_origin(hint) is tuple:
        text, nested = _takes(get_args(hint)[0])
        return f"{text}; or a list", nested
    if wanted:
        return wanted.replace("null", "`null`"), []
    if get_origin(hint) is Literal:
        return " ".join(f"`{value}`" for value in get_args(hint)), []
    if get_origin(hint) in (Union, types.UnionType):
        found = [_takes(item) for item in get_args(hint) if item is not type(None)]
        return " or ".join(text for text, _ in found), [part for _, parts in found for part in parts]
    if get_origin(hint) is dict:
        return f"a mapping of {_takes(get_args(hint)[0])[0]} to {_takes(get_args(hint)[1])[0]}", []
    if inspect.isclass(hint) and issubclass(hint, SpecPart):
        return "a mapping, see below", [hint]
    return WORDS[hint.__name__], []


def _default(value: Any) -> str:
    if isinstance(value, tuple):
        return _default(value[0]) if len(value) == 1 else ", ".join(map(_default, value))
    if value is None or isinstance(value, SpecPart):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _comments(part: type[SpecPart]) -> dict[str, str]:
    """What stands behind each field in the source of its model, or in the line above it."""
    source = inspect.getsource(part)
    said = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    alone = {line: text for line, text in said.items() if source.splitlines()[line - 1].lstrip().startswith("#")}
    (body,) = ast.parse(source).body
    fields = [node for node in getattr(body, "body", []) if isinstance(node, ast.AnnAssign)]
    return {
        node.target.id: said.get(node.end_lineno or 0) or alone.get(node.lineno - 1, "")
        for node in fields
        if isinstance(node.target, ast.Name)
    }


__all__ = ["page"]
