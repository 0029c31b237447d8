"""Module path: which module of a model an operator runs for, while the model is traced.

In forward it is the innermost module that is running. Backward runs no modules: there an autograd node belongs to the
module in which forward made it, which the nodes' running numbers tell.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

WHOLE = 0  # the number of the model itself, for what none of its parts does


class ModulePath:
    """Numbers of module names; `here` is the number of the one that is running now."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {"": WHOLE}
        self._known: dict[int, int] = {}  # by the module's identity
        self._running: list[int] = []
        self._first_nodes: list[int] = [0]  # autograd nodes from this number on were made ...
        self._makers: list[int] = [WHOLE]  # ... by this module
        self._last = WHOLE

    def number(self, name: str) -> int:
        """The number of a module's name, as named_modules() has it."""
        return self.numbers.setdefault(name, len(self.numbers))

    @property
    def here(self) -> int:
        if self._running:
            self._last = self._running[-1]
        elif (node := torch._C._current_autograd_node()) is not None:
            made = node._sequence_nr()
            if made < _LEAF:  # a sum into a leaf's gradient belongs to what was there before it
                self._last = self._makers[bisect_right(self._first_nodes, made) - 1]
        else:
            self._last = WHOLE
        return self._last

    @contextmanager
    def watching(self, module: torch.nn.Module) -> Iterator[None]:
        """Inside, the parts of `module` are seen when they run, in recomputed forwards too."""
        self._known = {id(part): self.number(name) for name, part in module.named_modules()}
        hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),  # recomputing ends in an exception
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, module: torch.nn.Module, _inputs: Any) -> None:
        self._running.append(self._known.get(id(module), self._running[-1] if self._running else WHOLE))
        self._mark()

    def _leave(self, _module: torch.nn.Module, _inputs: Any, _outputs: Any) -> None:
        self._running.pop()
        self._mark()

    def _mark(self) -> None:
        self._first_nodes.append(torch._C._autograd._get_sequence_nr())
        self._makers.append(self._running[-1] if self._running else WHOLE)


_LEAF = 1 << 63  # torch numbers the nodes that accumulate into leaves from the top


__all__ = ["WHOLE", "ModulePath"]
