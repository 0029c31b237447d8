"""Progress: what is being done, on stderr, once it takes long enough to wonder; a bar where it is counted."""

from __future__ import annotations

import re
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.status import Status

QUIET_SECONDS = 2.0
BETWEEN_SECONDS = {True: 0.1, False: 5.0}  # counted lines: on a terminal, and elsewhere, where others keep to it too
STILL_SECONDS = 10.0  # without a new line, the last is told again
BEAT_SECONDS = 1.0
COUNTED = re.compile(r"(?:[^ ]+: )?(\d+) of (\d+)\b")  # of a model, where several are compared
BAR_CELLS = 24


class Progress:
    """Called with a line when something begins. On a terminal the line is live, with the seconds that it takes;
    elsewhere lines follow each other, and a long one is told again. Inside `with` no stretch is silent, so what takes
    long belongs inside, imports too; `first` is what is done before anything is told."""

    def __init__(self, stream: TextIO | None = None, *, first: str = "") -> None:
        self.stream = stream or sys.stderr
        self.began = time.monotonic()
        self.counted = self.told = float("-inf")  # seconds since `began`
        self.text, self.last = first, ""
        self.status: Status | None = None
        self.left = threading.Event()
        self.showing = threading.Lock()
        self.beating: threading.Thread | None = None

    def __call__(self, text: str) -> None:
        seconds, live = time.monotonic() - self.began, self.stream.isatty()
        self.text = shown = text
        count = COUNTED.match(text)
        if count is not None:
            done, total = map(int, count.groups())
            shown = f"{bar(done, total)} {text}"
            if done < total and seconds - self.counted < BETWEEN_SECONDS[live]:
                return
            self.counted = seconds
        self.text = shown if live else text
        if live:
            self._live(shown)
        elif seconds >= QUIET_SECONDS and (count or seconds - self.told >= BETWEEN_SECONDS[live]):
            self._line(seconds)

    def beat(self) -> None:
        """Tell how long the last line has taken by now; `with` calls this every second."""
        seconds = time.monotonic() - self.began
        if not self.text or seconds < QUIET_SECONDS:
            return
        if self.stream.isatty():
            self._live(f"{self.text} ({seconds:.0f} s)")
        elif seconds - self.told >= (STILL_SECONDS if self.text == self.last else BETWEEN_SECONDS[False]):
            self._line(seconds)

    def __enter__(self) -> Self:
        self.beating = threading.Thread(target=self._beats, daemon=True)
        self.beating.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.left.set()
        if self.beating is not None:
            self.beating.join()
        if self.status is not None:
            self.status.stop()

    def _beats(self) -> None:
        while not self.left.wait(BEAT_SECONDS):
            self.beat()

    def _line(self, seconds: float) -> None:
        print(f"{seconds:.0f} s: {'still ' if self.text == self.last else ''}{self.text}", file=self.stream, flush=True)
        self.told, self.last = seconds, self.text

    def _live(self, text: str) -> None:
        with self.showing:  # a beat and a new line may both be the first to be shown
            if self.status is None:
                from rich.console import Console
                from rich.status import Status

                self.status = Status(text, console=Console(file=self.stream))
                self.status.start()
            else:
                self.status.update(text)


def reading(*sources: str) -> str:
    """What every command on specs does first."""
    return f"reading {' and '.join('standard input' if source == '-' else source for source in sources)}"


def bar(done: int, total: int) -> str:
    """``━━━━━━────── 25 %``: how much of a whole is done."""
    full = BAR_CELLS * done // max(1, total)
    return f"{'━' * full}{'─' * (BAR_CELLS - full)} {100 * done // max(1, total)} %"


__all__ = ["Progress", "bar", "reading"]
