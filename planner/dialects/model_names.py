"""The model that a config names: a preset, a hub id, or a folder with a config.json."""

from __future__ import annotations

import re

from catalog import presets
from planner.dialects.document import Document
from planner.dialects.reading import Reading

TUNED = re.compile(r"(?i)([-_](instruct|chat|it|base|hf|sft|v\d[\d.]*))+$")  # as large as the model it was tuned from
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def say_model(document: Document, reading: Reading, name: str) -> None:
    """The model by a name that rigplan finds; a folder that is not there is taken by its last part, which is told."""
    config = document.beside(f"{name}/config.json")
    if config is not None:
        reading.say("model.config", str(config))
        return
    preset = presets.lookup(name)
    if preset is not None:
        reading.say("model.name", preset.name)
        return
    last = name.rstrip("/").rsplit("/", 1)[-1]
    preset = presets.lookup(last) or presets.lookup(TUNED.sub("", last))
    if preset is not None:
        reading.say("model.name", preset.name)
        reading.assume(f"model {preset.name} by the last part of {name}")
    elif HUB_ID.fullmatch(name) and not name.startswith("."):
        reading.say("model.name", name)
        reading.assume(f"model {name} is no preset: its config comes from the hub")
    else:
        reading.unsure["model"] = (
            f"found the model {name}, which is neither a preset, a hub id nor a folder with a config.json; "
            "add --model NAME, as `rigplan models` lists"
        )


__all__ = ["say_model"]
