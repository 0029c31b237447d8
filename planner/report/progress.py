"""Progress: what is being done, on stderr, once it takes long enough to wonder; a bar where it is counted."""

from __future__ import annotations

import re
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.status import Status

QUIET_SECONDS = 2.0
BETWEEN_SECONDS = {True: 0.1, False: 5.0}  # counted lines: on a terminal, and elsewhere
COUNTED = re.compile(r"(\d+) of (\d+)\b")
BAR_CELLS = 24


class Progress:
    """Called with a line when something begins. On a terminal the line is live, elsewhere lines follow each other."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.began = time.monotonic()
        self.counted = float("-inf")
        self.status: Status | None = None

    def __call__(self, text: str) -> None:
        seconds, live = time.monotonic() - self.began, self.stream.isatty()
        shown, count = text, COUNTED.match(text)
        if count is not None:
            done, total = map(int, count.groups())
            shown = f"{bar(done, total)} {text}"
            if done < total and seconds - self.counted < BETWEEN_SECONDS[live]:
                return
            self.counted = seconds
        if live:
            self._live(shown)
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


def bar(done: int, total: int) -> str:
    """``━━━━━━────── 25 %``: how much of a whole is done."""
    full = BAR_CELLS * done // max(1, total)
    return f"{'━' * full}{'─' * (BAR_CELLS - full)} {100 * done // max(1, total)} %"


__all__ = ["Progress", "bar"]
