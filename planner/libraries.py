"""Libraries: torch and transformers imported when a trace needs them, never before."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from unittest import mock

from catalog.errors import RigplanError

# What every trace imports, and every trace of a transformers model.
TRACING = ("planner.trace",)
MODELS = ("transformers.modeling_utils", "transformers.models.auto.modeling_auto")
LISTS_MODELS = "create_import_structure_from_path"  # of transformers.utils.import_utils: kept by an lru_cache
# Whose warnings are about their own next version, and nothing that a user of rigplan could act on.
NAMES = r"(torch|transformers|peft|accelerate)(\.|$)"


def load(progress: Callable[[str], None], *, models: bool, adapters: bool = False) -> None:
    """Import what a trace needs, with transformers' `models` or without; `progress` hears of it where that takes time.
    Raises RigplanError, before anything is imported, where `adapters` need what is not installed.

    The garbage collector rests meanwhile: what an import makes is no garbage, and looking costs a fifth of the time.
    """
    if adapters:
        require_peft()
    missing = [name for name in (*TRACING, *(MODELS if models else ())) if name not in sys.modules]
    if missing:
        progress("loading torch and transformers" if models else "loading torch")
    with collector_at_rest(), warnings_off():
        for name in missing:
            if name in MODELS:
                list_models_once()
            import_module(name)


def list_models_once() -> None:
    """Let transformers read the sources of all its models once: it asks for them by their folder and again by its file.

    Saves half a second. The second time it gets what its own cache kept of the first.
    """
    import_utils = import_module("transformers.utils.import_utils")
    listed = getattr(import_utils, LISTS_MODELS, None)
    if isinstance(listed, FunctionType) or listed is None:
        return  # done before, or another transformers

    def of_folder(path: str | Path) -> object:
        return listed(Path(path).parent if Path(path).name == "__init__.py" else Path(path))

    setattr(import_utils, LISTS_MODELS, of_folder)


def require_peft() -> None:
    """Raise RigplanError where peft, an extra, is not installed."""
    if find_spec("peft") is None:
        raise RigplanError("model.lora needs peft, which is not installed; pip install peft")


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Without the garbage collector, which is afterwards as it was before."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextmanager
def no_device_threads() -> Iterator[None]:
    """Without the guard that fake tensors put in the place of a GPU's where torch was built for one and finds none:
    autograd would start a thread for it, and no worker could be forked after that. A trace has no tensor on a GPU."""
    with mock.patch.object(import_module("torch._C"), "_ensureCUDADeviceGuardSet", create=True):
        yield


@contextmanager
def warnings_off() -> Iterator[None]:
    """Without the libraries' own warnings."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=NAMES)
        yield


@contextmanager
def logs_off(name: str) -> Iterator[None]:
    """Without what a library logs below errors: of a model on fake tensors it means nothing to a user."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
