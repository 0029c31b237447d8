"""Overheads: what a process and a long run take beside the work, measured or published, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from catalog.store import DATA, load_yaml


@cache
def overheads() -> Mapping[str, Any]:
    """The figures of `catalog/data/overheads.yaml` by name."""
    data: Mapping[str, Any] = load_yaml(DATA / "overheads.yaml")
    return data
