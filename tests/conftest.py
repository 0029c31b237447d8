"""What every test may count on: no network, a cache of its own, and a place for specs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml


def pytest_configure() -> None:
    """Before anything is imported: a test never asks the hub and never warns about progress bars."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One cache for the whole session, so that traces are shared between tests and never with the user's."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))  # where refreshed prices would be


@pytest.fixture
def root() -> Path:
    """The top of the repository."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture
def spec_file(tmp_path: Path) -> Callable[[object], Path]:
    """Write a spec (a mapping, or text as it stands) to a file and return its path."""

    def write(content: object) -> Path:
        path = tmp_path / "spec.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return write
