"""Progress: what is being done, on stderr, once it takes long enough to wonder."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.status import Status

QUIET_SECONDS = 2.0


class Progress:
    """Called with a line when something begins. On a terminal the line is live, elsewhere lines follow each other."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.began = time.monotonic()
        self.status: Status | None = None

    def __call__(self, text: str) -> None:
        seconds = time.monotonic() - self.began
        if self.stream.isatty():
            self._live(text)
        elif seconds >= QUIET_SECONDS:
            print(f"{seconds:.0f} s: {text}", file=self.stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is not None:
            self.status.stop()

    def _live(self, text: str) -> None:
        if self.status is None:
            from rich.console import Console
            from rich.status import Status

            self.status = Status(text, console=Console(file=self.stream))
            self.status.start()
        else:
            self.status.update(text)


__all__ = ["Progress"]
