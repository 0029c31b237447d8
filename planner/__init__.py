"""Will it fit, how long will it take, what will it cost: `estimate`, `plan`, `fits` and `explain` take a Spec, a dict
or a path.

Names are loaded on first use, so that importing the package costs nothing and never pulls in torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from catalog.errors import RigplanError as RigplanError
    from planner.explained import explain as explain
    from planner.search import estimate as estimate
    from planner.search import fits as fits
    from planner.search import plan as plan
    from planner.spec import Spec as Spec

__version__ = "0.1.0"

_HOMES = {
    "RigplanError": "catalog.errors",
    "Spec": "planner.spec",
    "estimate": "planner.search",
    "explain": "planner.explained",
    "fits": "planner.search",
    "plan": "planner.search",
}
__all__ = ["RigplanError", "Spec", "estimate", "explain", "fits", "plan"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"planner has no {name}; it offers {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
