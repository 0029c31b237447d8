"""What README and docs show of answers: printed lines after a command, and sentences with figures.

    python -m tests.shown            tells what differs from the answers of today
    python -m tests.shown --write    writes those into the pages

In a console block the lines after a command are lines that it prints, in their order; `...` stands for others between.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

from click.testing import CliRunner

import planner
from planner.answer import Estimate, Plan
from planner.cli import rigplan

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/tutorial.md", "docs/budgets.md")
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
LEFT_OUT = "..."
NUMBER = r"[\d,]+(?:\.\d+)?"
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Block:
    """A command of a page and the lines that are shown after it, with their place in the page's text."""

    page: str
    command: str
    lines: tuple[str, ...]
    start: int


def blocks(page: str, text: str) -> Iterator[Block]:
    """The commands of a page that are shown with what they print."""
    for match in CONSOLE.finditer(text):
        parts = re.split(r"^\$ rigplan ", match[1], flags=re.MULTILINE)
        place = match.start(1) + len(parts[0])
        for part in parts[1:]:
            place += len("$ rigplan ")
            command, _, shown = part.partition("\n")
            if shown.strip():
                lines = tuple(shown.rstrip("\n").split("\n"))
                yield Block(page, re.sub(r"\s+#.*", "", command), lines, place + len(command) + 1)
            place += len(part)


def printed(command: str) -> list[str]:
    """The lines that a command prints on standard output, in a copy of the examples."""
    with tempfile.TemporaryDirectory() as folder:
        copytree(ROOT / "examples", Path(folder) / "examples")
        with chdir(folder):
            done = CliRunner(env={"COLUMNS": "120"}).invoke(rigplan, shlex.split(command), catch_exceptions=False)
    if done.exit_code != 0:
        raise ValueError(f"rigplan {command}: {done.stderr}")
    return [line.rstrip() for line in done.stdout.splitlines()]


def brought_up_to_date(shown: Sequence[str], answer: Sequence[str]) -> list[str]:
    """The shown lines with the numbers of the answer: each is the next printed line that is alike but for its numbers.

    Raises ValueError for a line that no longer has such, or not where the lines around it have theirs.
    """
    found: list[str] = []
    at, anywhere = 0, True
    for line in shown:
        if line == LEFT_OUT:
            found.append(line)
            anywhere = True
            continue
        places = range(at, len(answer) if anywhere else min(at + 1, len(answer)))
        place = next((place for place in places if _alike(answer[place]) == _alike(line)), None)
        if place is None:
            raise ValueError(f"is not printed any more{'' if anywhere else ' here'}: {line}")
        found.append(answer[place])
        at, anywhere = place + 1, False
    return found


def _alike(line: str) -> str:
    """A line without its numbers, and without the widths that follow from them."""
    return re.sub(r"[\s-]+", " ", re.sub(NUMBER, "#", line)).strip()


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words of a page with figures in them, as a format, and where the figures come from."""

    page: str
    words: str
    figures: Callable[[], Figures]

    def pattern(self) -> re.Pattern[str]:
        parts = re.split(r"(\{[^}]+\})", self.words)
        fixed = [
            f"({NUMBER})" if part.startswith("{") else r"\s+".join(map(re.escape, re.split(r"\s+", part)))
            for part in parts
        ]
        return re.compile("".join(fixed))

    def brought_up_to_date(self, text: str) -> str:
        """The page's text with the figures of today. Raises ValueError where it does not have these words."""
        match = self.pattern().search(text)
        if match is None:
            raise ValueError(f"{self.page}: no longer says: {self.words}")
        figures = self.figures()
        fields = re.findall(r"\{[^}]+\}", self.words)
        for number, part in reversed(list(enumerate(fields, 1))):
            start, end = match.span(number)
            text = text[:start] + part.format(**figures) + text[end:]
        return text


def _plan(example: str) -> Plan:
    if example not in _PLANS:
        _PLANS[example] = planner.plan(ROOT / "examples" / example)
    return _PLANS[example]


_PLANS: dict[str, Plan] = {}


def fastest(found: Plan, gpu: str, count: int) -> Estimate:
    machine = (item for item in found.ranked if (item.hardware.gpu, item.hardware.count) == (gpu, count))
    return min(machine, key=lambda item: item.run.days if item.run else float("inf"))


def _pythia(gpu: str, count: int, bought_usd: float) -> Callable[[], Figures]:
    """Days, USD by the hour, and the write-off over five years of a machine bought for so much."""

    def figures() -> Figures:
        run: Any = fastest(_plan("pythia-1b.yaml"), gpu, count).run
        return {"days": run.days, "usd": run.cost_usd, "off": bought_usd * run.days / (5 * 365)}

    return figures


def _lingvanex(gpu: str) -> Callable[[], Figures]:
    def figures() -> Figures:
        found: Any = next(item for item in _plan("lingvanex.yaml").ranked if item.hardware.gpu == gpu).campaign
        return {"days": found.days, "usd": found.cost_usd}

    return figures


# name in the table of docs/budgets.md: (GPU, how many, USD to buy with the study's prices)
MACHINES = {
    "8 x H100 SXM": ("h100-sxm5-80gb", 8, 250_500),
    "4 x H100 SXM": ("h100-sxm5-80gb", 4, 127_500),
    "8 x A100 80GB": ("a100-sxm4-80gb", 8, 162_500),
    "8 x A6000": ("rtx-a6000", 8, 48_900),
    "8 x RTX 3090": ("rtx-3090", 8, 20_900),
    "2 x RTX 3090": ("rtx-3090", 2, 4_100),
}
SENTENCES = (
    Sentence("README.md", "Pythia-1B takes {days:.0f} days on 4 H100", _pythia("h100-sxm5-80gb", 4, 127_500)),
    Sentence("README.md", "or {days:.0f} days on 8 RTX 3090 for", _pythia("rtx-3090", 8, 20_900)),
    Sentence("README.md", "Two RTX 3090 need {days:.0f} days", _pythia("rtx-3090", 2, 4_100)),
    Sentence("README.md", "{usd:,.0f} USD in {days:.1f} days on 8 H100", _pythia("h100-sxm5-80gb", 8, 250_500)),
    Sentence("README.md", "or {usd:,.0f} USD on 8 RTX 3090", _pythia("rtx-3090", 8, 20_900)),
    Sentence("README.md", "in about {days:.0f} days on 66 RTX 3090 for {usd:,.0f} USD", _lingvanex("rtx-3090")),
    Sentence("README.md", "in {days:.0f} on 8 A100 for {usd:,.0f}", _lingvanex("a100-sxm4-80gb")),
    Sentence("README.md", "take {days:.0f} days and {usd:,.0f} USD", _lingvanex("h100-sxm5-80gb")),
    *(
        Sentence(
            "docs/budgets.md",
            f"| {name} | {bought:,} | {{days:.1f}} | {{off:,.0f}} | {{usd:,.0f}} |",
            _pythia(gpu, count, bought),
        )
        for name, (gpu, count, bought) in MACHINES.items()
    ),
)  # fmt: skip


def page_of_today(page: str, text: str) -> str:
    """A page with the lines and the figures of today."""
    for block in reversed(list(blocks(page, text))):
        text = with_block(text, block, brought_up_to_date(block.lines, printed(block.command)))
    for sentence in SENTENCES:
        if sentence.page == page:
            text = sentence.brought_up_to_date(text)
    return text


def with_block(text: str, block: Block, lines: Sequence[str]) -> str:
    length = len("\n".join(block.lines))
    return text[: block.start] + "\n".join(lines) + text[block.start + length :]


def main() -> None:
    for page in PAGES:
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        today = page_of_today(page, text)
        changed = sum(one != two for one, two in zip(text.splitlines(), today.splitlines(), strict=True))
        print(f"{page}: {changed} lines differ")
        if "--write" in sys.argv[1:]:
            path.write_text(today, encoding="utf-8")


if __name__ == "__main__":
    main()
