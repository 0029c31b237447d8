"""The report: a page that stands alone, and the same in Markdown, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from catalog.errors import RigplanError
from planner.answer import Plan
from planner.cli import rigplan
from planner.money import charged
from planner.rank import pareto, question, ranked
from planner.report.export import written
from planner.report.page import html
from planner.report.proposal import programmes, proposal
from planner.spec import Spec
from tests.planner.answers import estimate, excluded

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
NOSY = "<script>alert(1)</script>"
SPEC = Spec.load(
    {
        "model": {"name": "pythia-1b"},
        "data": {"total": "143000 steps"},
        "hardware": {"gpu": "h200-sxm", "price": {"usd_per_gpu_hour": 3}},
    }
)


def plan(spec: Spec = SPEC) -> Plan:
    made = [
        estimate(gpu, count, days=days / count, usd=1.0)
        for gpu, days in (("h200-sxm", 40.0), ("rtx-3090", 400.0), ("a100-sxm4-80gb", 90.0))
        for count in (1, 2, 4, 8)
    ]
    best = ranked([charged(spec, item) for item in made], "cost")
    out = [
        excluded("rtx-4090", 1, "does not fit even at micro-batch 1: needs 30.00 GiB of 23.50 GiB"),
        excluded("l4", 2, NOSY),
    ]
    return Plan(ranked=best, excluded=out, pareto=pareto(best), assumptions=[NOSY], question=question(spec))


def campaign() -> tuple[Spec, Plan]:
    parts = SPEC.model_dump(mode="json", exclude_none=True) | {
        "campaign": {
            "runs": 10,
            "gpus_per_run": 1,
            "pilot": {"runs": 1, "share": 0.1},
            "failed": 0.1,
            "contingency": 0.2,
        }
    }
    spec = Spec.load(parts)
    return spec, plan(spec)


class Reader(HTMLParser):
    """The tags in order, checked to close, with what they refer to."""

    VOID = frozenset({"meta", "line", "circle", "polyline", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.refers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.refers += [value for name, value in attrs if name in ("src", "href", "xlink:href", "srcset") and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_stands_alone_and_closes_every_tag() -> None:
    read = Reader(html(SPEC, plan(), list(programmes())))
    assert read.open == []
    assert read.refers == []
    assert not {"script", "link", "img", "iframe"} & set(read.tags)
    assert read.tags.count("svg") == 2


def test_its_style_asks_no_network_and_knows_the_dark() -> None:
    style = html(SPEC, plan(), []).split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme: dark" in style


def test_what_comes_from_outside_is_escaped() -> None:
    text = html(SPEC, plan(), [])
    assert NOSY not in text
    assert text.count("&lt;script&gt;") == 2  # the assumption and the reason


def test_the_page_holds_every_part_of_an_answer() -> None:
    text = html(SPEC, plan(), list(programmes()))
    for part in (
        "Memory of one GPU at the peak, in backward",
        "Ranked",
        "What it costs",
        "Excluded",
        "How the numbers",
    ):
        assert part in text, part
    assert "The cheapest: 8 x rtx-3090" in text
    assert "on-demand, median of" in text
    assert "does not fit even at micro-batch 1" in text
    assert "physical floor" in text


def test_the_scatter_marks_every_priced_plan_and_the_front() -> None:
    found = plan()
    text = html(SPEC, found, [])
    scatter, scaling = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert scatter.count("<circle") == len(found.ranked) == 12
    assert scaling.count("<polyline") == 3


def test_one_plan_alone_has_no_scatter() -> None:
    found = plan()
    assert "<svg" not in html(SPEC, Plan(ranked=found.ranked[:1]), [])


def test_every_key_figure_has_its_source_under_it() -> None:
    text = html(SPEC, plan(), [])
    shown = re.findall(r"<dt>(.*?)</dt>.*?<dd class=\"source\">(.*?)</dd>", text)
    assert [name for name, _ in shown] == ["time", "cost", "GPU time", "memory of a GPU", "energy"]
    assert all(source for _, source in shown)
    assert "on-demand, median of" in dict(shown)["cost"]
    prices = text.split("Prices, with their sources and dates")[1].split("</details>")[0]
    assert all(gpu in prices for gpu in ("rtx-3090", "a100-sxm4-80gb", "h200-sxm"))


def test_a_plan_of_which_nothing_works_is_a_page_too() -> None:
    text = html(SPEC, Plan(ranked=[], excluded=plan().excluded), list(programmes()))
    assert "None of the combinations works." in text
    assert Reader(text).open == []


def test_a_campaign_fills_the_reviewers_table() -> None:
    spec, found = campaign()
    made = proposal(spec, found, "nairr")
    assert made is not None
    assert [row[0] for row in made.rows] == ["pilot", "final", "production", "failed", "contingency", "total"]
    final = made.rows[1]
    whole = found.ranked[0].campaign
    assert whole is not None
    assert final[2] == "10"
    assert made.rows[-1][-1] == f"{whole.gpu_hours:,.0f} GPU-hours"
    assert f"10 final runs and 1 pilot run, which comes to {whole.gpu_hours:,.0f} GPU-hours" in made.text


def test_each_programme_has_its_unit() -> None:
    spec, found = campaign()
    totals = {name: made.rows[-1][-1] for name in programmes() if (made := proposal(spec, found, name)) is not None}
    assert totals["nairr"].endswith("GPU-hours")
    assert totals["eurohpc"].endswith("node-hours")
    assert totals["nsf"].endswith("USD")


def test_eurohpc_charges_whole_nodes() -> None:
    for count, days in ((1, 100.0), (8, 100.0), (12, 50.0)):  # a GPU takes its whole node; 12 GPUs take two
        made = proposal(SPEC, Plan(ranked=[estimate(count=count, days=days)]), "eurohpc")
        assert made is not None
        assert made.rows[-1][-1] == "2,400 node-hours"


def test_an_unknown_programme_says_which_are_known() -> None:
    with pytest.raises(RigplanError, match="found 'nair', wanted one of nairr, eurohpc, nsf"):
        proposal(SPEC, plan(), "nair")


def test_the_csv_has_a_line_a_combination_with_its_reason() -> None:
    found = plan()
    lines = list(csv.DictReader(io.StringIO(written(".csv", SPEC, found, []))))
    assert len(lines) == len(found.ranked) + len(found.excluded)
    assert [line["rank"] for line in lines[:2]] == ["1", "2"]
    assert lines[0]["cost_usd"] == str(found.ranked[0].run.cost_usd)  # type: ignore[union-attr]
    assert lines[-2]["reason"].startswith("does not fit")


def test_the_json_is_the_plan_with_its_proposals() -> None:
    found = plan()
    text = json.loads(written(".json", SPEC, found, ["nsf"]))
    assert [item["programme"] for item in text.pop("proposals")] == ["nsf"]
    assert Plan.model_validate(text) == found


def test_the_markdown_says_what_the_page_says() -> None:
    spec, found = campaign()
    text = written(".md", spec, found, ["nairr"])
    assert text.startswith("# pythia-1b: 143000 steps, 10 runs\n\n**The cheapest: ")
    for part in ("## The campaign", "## Ranked", "| activity | model / data |", "## Excluded", "### Assumed"):
        assert part in text


def test_an_ending_that_is_not_known_is_refused() -> None:
    done = CliRunner().invoke(rigplan, ["report", "examples/vit.yaml", "-o", "report.pdf"])
    assert done.exit_code == 2
    assert done.stderr == (
        "rigplan: error: -o: found 'report.pdf', wanted a file that ends in .html, .md, .json, .csv\n"
    )


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_it_without_cutting_or_asking(width: int, tmp_path: Path) -> None:
    """The document is laid out at this width: nothing but a scrolling table is wider than the window."""
    assert CHROMIUM is not None
    spec, found = campaign()
    text = html(spec, found, list(programmes())).replace("<details>", "<details open>")
    probe = (
        "<script>addEventListener('load', () => { const wide = [...document.querySelectorAll('body *')]"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '.' + e.className);"
        "const asked = performance.getEntriesByType('resource').length;"
        "document.title = JSON.stringify({wide, asked, inner: innerWidth})"
        "});</script>"
    )
    (tmp_path / "frame.html").write_text(text.replace("</body>", f"{probe}</body>"))
    # a headless window is never narrower than 500 pixels, a frame in it is
    (tmp_path / "page.html").write_text(
        f"<iframe id=f src=frame.html style='border:0;width:{width}px;height:900px'></iframe><script>"
        "addEventListener('load', () => setTimeout(() => { document.title = f.contentDocument.title }, 300))</script>"
    )
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000",
        "--virtual-time-budget=5000", "--dump-dom",
    ]  # fmt: skip
    page = (tmp_path / "page.html").as_uri()
    done = subprocess.run([CHROMIUM, *flags, page], capture_output=True, text=True, timeout=120, check=True)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None, done.stdout[:500]
    seen = json.loads(title[1])
    assert seen == {"wide": [], "asked": 0, "inner": width}
