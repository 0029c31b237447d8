"""Load the catalog's data, each file once and only when asked for, and find an accelerator by what people write."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from catalog.accelerator import Accelerator, from_entry
from catalog.errors import RigplanError, shown
from catalog.names import Match, Names

DATA = Path(__file__).parent / "data"
# libyaml's loader is about eight times faster; the pure-Python one reads the same files where it is missing.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FILE_ENDINGS = (".yaml", ".yml")


def load_yaml(path: Path) -> Any:
    """The content of a YAML file. Raises RigplanError when it is missing or not YAML."""
    try:
        with path.open(encoding="utf-8") as stream:
            return yaml.load(stream, Loader=_LOADER)
    except FileNotFoundError:
        raise RigplanError(f"There is no file {str(path)!r}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RigplanError(f"{str(path)!r} cannot be read: {error}.") from None
    except yaml.YAMLError as error:
        raise RigplanError(f"{str(path)!r} is not valid YAML: {' '.join(str(error).split())}.") from None


@cache
def accelerator_names() -> tuple[str, ...]:
    """Canonical names of all devices, sorted: one file each under ``data/accelerators``."""
    return tuple(sorted(path.stem for path in (DATA / "accelerators").glob("*.yaml")))


@cache
def _names() -> Names:
    return Names.build(accelerator_names(), load_yaml(DATA / "names.yaml"))


@cache
def _usable_rules() -> dict[str, Any]:
    rules: dict[str, Any] = load_yaml(DATA / "usable_memory.yaml")
    return rules


@cache
def accelerator(name: str) -> Accelerator:
    """The device with this canonical name. Raises RigplanError when there is none."""
    if name not in accelerator_names():
        raise RigplanError(f"Unknown accelerator {shown(name)}. `rigplan gpus` lists all.")
    path = DATA / "accelerators" / f"{name}.yaml"
    return from_entry(load_yaml(path), _usable_rules(), f"catalog entry {name}")


def accelerators() -> tuple[Accelerator, ...]:
    """Every device of the catalog, by name."""
    return tuple(accelerator(name) for name in accelerator_names())


@cache
def match(name: str) -> Match:
    """The canonical name behind ``name`` in any case and punctuation, and what was assumed to decide it.

    Raises RigplanError when the name is unknown ("did you mean") or means several devices (they are listed).
    """
    if not isinstance(name, str) or not name.strip():
        raise RigplanError(f"{name!r} is not the name of an accelerator; `rigplan gpus` lists all.")
    return _names().find(name.strip())


@cache
def lookup(name: str) -> Match | None:
    """As ``match``, but None for a name that is unknown or leaves the device open: for the spellings of data files."""
    found = _names().lookup(name.strip())
    return found if isinstance(found, Match) else None


def find(name: str) -> Accelerator:
    """The accelerator ``name`` means: a catalog name as people write it, or the path of a YAML file of your own.

    Raises RigplanError for an unknown or ambiguous name and for a file that does not describe an accelerator.
    """
    if isinstance(name, str) and name.lower().endswith(_FILE_ENDINGS):
        path = Path(name).expanduser()
        return from_entry(load_yaml(path), _usable_rules(), str(path))
    return accelerator(match(name).name)


def assumption(name: str) -> str:
    """What ``find(name)`` assumed, as one sentence; empty when the name decided it."""
    return "" if name.lower().endswith(_FILE_ENDINGS) else match(name).assumption
