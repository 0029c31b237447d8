"""What torch's caching allocator did, event by event, in a small file: a truth for predicted streams of allocations."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

LARGEST = 200_000  # events kept of one step
# Codes in the file, by torch's names of the actions. `free_requested` is left out: `free_completed` follows it.
ACTIONS = {"alloc": "a", "free_completed": "f", "segment_alloc": "A", "segment_free": "F", "oom": "o"}


@contextlib.contextmanager
def recorded() -> Iterator[dict[str, Any]]:
    """Fill the yielded dict, at the end of the block, with the events that took place in it (see `compact`)."""
    found: dict[str, Any] = {}
    memory: Any = torch.cuda.memory
    memory._record_memory_history("all", context=None, stacks="python", max_entries=LARGEST)
    try:
        yield found
        torch.cuda.synchronize()
        found.update(compact(memory._snapshot()["device_traces"][torch.cuda.current_device()]))
    finally:
        memory._record_memory_history(None)


@contextlib.contextmanager
def unrecorded() -> Iterator[dict[str, Any]]:
    yield {}


def compact(trace: list[dict[str, Any]]) -> dict[str, Any]:
    """`actions` one letter an event (see ACTIONS), `sizes` in bytes, `blocks` the index of the address by first use."""
    kept = [event for event in trace if event["action"] in ACTIONS]
    addresses: dict[int, int] = {}
    blocks = [addresses.setdefault(event.get("addr", 0), len(addresses)) for event in kept]
    return {
        "actions": "".join(ACTIONS[event["action"]] for event in kept),
        "sizes": [event["size"] for event in kept],
        "blocks": blocks,
        "truncated": len(trace) >= LARGEST,
    }


def write(path: Path, steps: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({"steps": steps}, file, separators=(",", ":"))


def read(path: Path) -> list[dict[str, Any]]:
    """The recorded steps of a file, each with its number, `actions`, `sizes` and `blocks`."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        steps: list[dict[str, Any]] = json.load(file)["steps"]
    return steps
