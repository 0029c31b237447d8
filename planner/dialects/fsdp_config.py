"""The JSON that TrainingArguments' `fsdp_config` names."""

from __future__ import annotations

from planner.dialects.document import Document
from planner.dialects.reading import Options, Reading
from planner.dialects.trainer import read_fsdp_config


def read(document: Document) -> Reading:
    """Say what the JSON says. Raises RigplanError for a value that cannot be read."""
    reading = Reading(document.source)
    read_fsdp_config(Options(document.mapping or {}, document.source), reading)
    return reading


__all__ = ["read"]
