"""Printed answers, against golden files; after a wanted change run this file with RIGPLAN_GOLDEN=write."""

from __future__ import annotations

import os
import re
from io import StringIO
from pathlib import Path

import pytest

from planner.answer import Plan
from planner.rank import pareto, ranked
from planner.report import estimate as estimate_page
from planner.report import ladder as ladder_page
from planner.report import layout, plan
from planner.report.progress import Progress, bar, reading
from planner.rung import Rung
from tests.planner.answers import estimate, excluded

WIDEST = 120


def check(text: str, golden: Path) -> None:
    if os.environ.get("RIGPLAN_GOLDEN") == "write":
        golden.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == golden.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= WIDEST


@pytest.fixture
def golden(root: Path) -> Path:
    return root / "tests" / "golden"


def _plan() -> Plan:
    best = ranked(
        [
            estimate("h100-sxm5-80gb", 8, days=5.1, usd=4102, used_gib=52.2),
            estimate("rtx-3090", 1, days=469, usd=2250, used_gib=23.2, micro_batch=1, accumulation=1024),
            estimate("rtx-3090", 2, days=287, usd=2751, used_gib=23.6, verdict="borderline", checkpointing="full"),
            estimate("rtx-a6000", 4, days=75.8, usd=None, used_gib=36.7),
        ],
        "cost",
    )
    return Plan(
        ranked=best,
        excluded=[
            excluded("rtx-3090", 2, "does not fit even at micro-batch 1: needs 26.9 GiB of 23.7 GiB, 3.2 GiB missing"),
            excluded("rtx-3090", 4, "does not fit even at micro-batch 1: needs 27.1 GiB of 23.7 GiB, 3.4 GiB missing"),
            excluded("rtx-3090", 1, "sharding fsdp is not modelled yet; use sharding: none"),
        ],
        pareto=pareto(best),
        assumptions=["2 GPUs joined as in 8x rtx-3090 (pcie4-no-peer)"],
        unmodelled=["data loading"],
        notes=["ranked by time after the priced ones: no price for rtx-a6000"],
    )


def test_an_estimate_prints_as_agreed(golden: Path) -> None:
    check(estimate_page.page(estimate()), golden / "estimate.txt")


def test_an_estimate_that_does_not_fit_prints_what_is_missing(golden: Path) -> None:
    found = estimate(used_gib=150.0, verdict="does-not-fit", days=None)
    check(estimate_page.page(found.model_copy(update={"step": None})), golden / "does_not_fit.txt")


@pytest.mark.parametrize(
    ("verdict", "words"), [("does-not-fit", "It runs out of memory"), ("borderline", "It may run out of memory")]
)
def test_time_and_cost_of_what_may_not_fit_come_after_the_word_that_says_so(verdict: str, words: str) -> None:
    text = estimate_page.page(estimate(used_gib=150.0, verdict=verdict), "my.yaml")
    warning, step = text.index(f"\n{words}"), text.index("\nStep: ")
    assert warning < step < text.index("\nRun: ")
    assert "`rigplan fits my.yaml` shows what makes it fit" in text[warning:step]


def test_what_fits_is_told_without_a_warning() -> None:
    assert "out of memory" not in estimate_page.page(estimate())


def test_the_first_line_says_the_verdict_the_room_and_the_range() -> None:
    assert estimate_page.verdict(estimate()) == "fits: 16.8 of 139.8 GiB, 123.0 GiB free (16.5 to 17.5 GiB)"
    too_large = estimate(used_gib=150.0, verdict="does-not-fit")
    assert estimate_page.verdict(too_large).startswith("does-not-fit: 150.0 of 139.8 GiB, 10.2 GiB missing")


def test_a_plan_prints_as_agreed(golden: Path) -> None:
    check(plan.page(_plan()), golden / "plan.txt")


def test_a_plan_without_an_answer_says_so_first() -> None:
    text = plan.page(Plan(ranked=[], excluded=_plan().excluded))
    assert text.startswith("none of 3 combinations works\n")
    assert "2 combinations on 2/4 x rtx-3090; for example, does not fit" in " ".join(text.split())


def test_a_best_plan_that_may_not_fit_names_the_one_that_surely_does() -> None:
    unsure, sure = estimate("rtx-3090", usd=10, verdict="borderline"), estimate("rtx-a6000", usd=20)
    head = plan.page(Plan(ranked=[unsure, sure])).splitlines()[2]
    assert head.startswith("its memory is borderline; best that surely fits: 1 x rtx-a6000")


def test_a_slow_winner_by_cost_names_the_fastest_and_the_option_that_limits_time() -> None:
    cheap, quick = estimate("rtx-3090", days=477, usd=2291), estimate("h100-sxm5-80gb", 8, days=7, usd=4679)
    found = Plan(ranked=[cheap, quick], pareto=[quick, cheap], question="the cheapest")
    head = plan.page(found).splitlines()
    assert head[2].startswith("the fastest: 8 x h100-sxm5-80gb")
    assert head[3] == "--within 200d asks for the cheapest that is done by then"
    limited = found.model_copy(update={"question": "the cheapest that finishes in 500 days"})
    assert "--within" not in plan.page(limited)
    near = found.model_copy(update={"ranked": [cheap], "pareto": [cheap]})
    assert "--within" not in plan.page(near)


def test_a_long_plan_shows_the_best_and_what_else_is_on_the_front() -> None:
    rows = [estimate("rtx-3090", days=100 + at, usd=1000 + at) for at in range(40)]
    quick = estimate("h100-sxm5-80gb", days=1, usd=9000)
    found = Plan(ranked=[*rows, quick], pareto=[quick, rows[0]])
    text = plan.page(found)
    assert "... and 10 more plans below these; --all shows them" in text
    assert "41*" in text
    assert "more plans" not in plan.page(found, every=True)


def test_a_knob_without_a_column_of_its_own_is_shown_where_it_is_used() -> None:
    text = plan.page(Plan(ranked=[estimate(optimizer="sgd", allocator="expandable"), estimate()]))
    assert "sgd, expandable" in text
    assert "other" not in plan.page(Plan(ranked=[estimate()]))


def test_the_ladder_prints_as_agreed(golden: Path) -> None:
    found = estimate(used_gib=150.0, verdict="does-not-fit")
    rungs = [
        Rung("allocator: expandable", "nothing", estimate(used_gib=148, verdict="does-not-fit"), 2 << 30),
        Rung("checkpointing: full", "a second forward", estimate(used_gib=80), 70 << 30),
    ]
    check(ladder_page.steps(found, rungs), golden / "ladder.txt")


@pytest.mark.parametrize(("value", "text"), [(1240.4, "1,240"), (38.16, "38.2"), (0.5678, "0.57"), (9.996, "10.0")])
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert layout.few_digits(value) == text


@pytest.mark.parametrize(
    ("days", "cell", "between"),
    [(38.16, "38.2", "28.6 to 51.5"), (1.5, "36.0 h", "27.0 to 48.6"), (1 / 24, "1.00 h", "0.75 to 1.35")],
)
def test_a_length_is_told_in_the_unit_that_reads_best_and_its_range_in_the_same(
    days: float, cell: str, between: str
) -> None:
    assert layout.length(days) == cell
    assert layout.length_span(days, 0.75 * days, 1.35 * days) == between


def test_a_short_run_is_told_in_hours_or_minutes_everywhere() -> None:
    hour = estimate(days=1 / 24, usd=2.0)
    text = plan.page(Plan(ranked=[hour, estimate(days=30)], question="the cheapest that finishes in 2 days"))
    assert ": 1 h (0.75 to 1.35), 2.00 USD" in text.splitlines()[1]
    assert re.search(r" 1\.00 h 0\.75-1\.35 ", text)
    assert "Run: 20 min (15 min to 27 min)" in estimate_page.page(estimate(days=20 / 1440))


def test_a_run_for_less_than_10_usd_is_told_to_the_cent() -> None:
    assert ", 0.03 USD" in plan.page(Plan(ranked=[estimate(usd=0.034)]))
    assert ", 12 USD" in plan.page(Plan(ranked=[estimate(usd=12.4)]))


def test_progress_is_silent_while_it_is_quick_and_plain_off_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StringIO()
    progress = Progress(stream)
    progress("tracing")
    assert stream.getvalue() == ""
    monkeypatch.setattr(progress, "began", progress.began - 5)
    progress("tracing more")
    assert stream.getvalue() == "5 s: tracing more\n"


def test_no_stretch_of_a_long_wait_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StringIO()
    progress = Progress(stream)
    progress("tracing")
    progress.beat()
    assert stream.getvalue() == ""
    for _ in range(4):
        monkeypatch.setattr(progress, "began", progress.began - 6)
        progress.beat()
    assert stream.getvalue() == "6 s: tracing\n18 s: still tracing\n"


def test_what_comes_before_the_first_line_is_told_too_and_lines_off_a_terminal_keep_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = StringIO()
    progress = Progress(stream, first=reading("a.yaml", "-"))
    for seconds in (1, 2, 1, 3, 2):  # 1, 3, 4, 7 and 9 s after it began
        monkeypatch.setattr(progress, "began", progress.began - seconds)
        if seconds == 3:
            progress("tracing")
            progress("ranking")
        progress.beat()
    assert stream.getvalue() == "3 s: reading a.yaml and standard input\n9 s: ranking\n"


def test_counted_progress_is_a_bar_on_a_terminal_and_seldom_a_line_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bar(25, 100) == "━━━━━━────────────────── 25 %"
    assert bar(100, 100).startswith("━" * 24)
    stream = StringIO()
    progress = Progress(stream)
    monkeypatch.setattr(progress, "began", progress.began - 5)
    for done in range(1, 10_001):
        progress(f"{done} of 10000 combinations worked out")
    lines = stream.getvalue().splitlines()
    assert lines[-1].endswith("10000 of 10000 combinations worked out")
    assert len(lines) < 10


def test_the_peak_of_each_phase_is_printed_under_the_table() -> None:
    found = estimate()
    gib = 1 << 30
    peaks = {"load": 2 * gib, "forward": 9 * gib, "backward": 12 * gib, "optimizer": 8 * gib, "evaluation": 7 * gib}
    memory = found.memory.model_copy(update={"by_phase": peaks})
    line = "  Allocated at most: load 2.0, forward 9.0, backward 12.0, optimizer 8.0, evaluation 7.0 GiB"
    assert line in estimate_page.page(found.model_copy(update={"memory": memory})).splitlines()
    assert "Allocated at most" not in estimate_page.page(found)
