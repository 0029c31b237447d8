"""What README and docs show is what the commands answer; `python -m tests.shown --write` brings it up to date."""

from __future__ import annotations

import pytest

from tests.shown import PAGES, ROOT, SENTENCES, Block, Sentence, blocks, brought_up_to_date, printed, with_block

SHOWN = [block for page in PAGES for block in blocks(page, (ROOT / page).read_text(encoding="utf-8"))]


@pytest.mark.slow
@pytest.mark.parametrize("block", SHOWN, ids=lambda block: f"{block.page} {block.command}")
def test_the_lines_after_a_command_are_those_it_prints(block: Block) -> None:
    assert list(block.lines) == brought_up_to_date(block.lines, printed(block.command))


@pytest.mark.slow
@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda sentence: f"{sentence.page} {sentence.words}")
def test_a_figure_in_a_sentence_is_that_of_the_answer(sentence: Sentence) -> None:
    text = (ROOT / sentence.page).read_text(encoding="utf-8")
    assert sentence.brought_up_to_date(text) == text


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda sentence: f"{sentence.page} {sentence.words}")
def test_a_sentence_whose_figures_are_held_is_there(sentence: Sentence) -> None:
    assert sentence.pattern().search((ROOT / sentence.page).read_text(encoding="utf-8"))


PAGE = (
    "Text\n\n```console\n$ rigplan fits a.yaml  # why\nfits: 14.1 of 79.2 GiB\n...\n  weights   0.46\n"
    "$ rigplan b\n```\n"
)
ANSWER = ["fits: 9.0 of 79.2 GiB", "", "  logits   2.3", "  weights     12.5", ""]


def test_a_block_is_found_and_its_numbers_follow_the_answer() -> None:
    (block,) = blocks("page.md", PAGE)
    assert (block.command, block.lines) == ("fits a.yaml", ("fits: 14.1 of 79.2 GiB", "...", "  weights   0.46"))
    lines = brought_up_to_date(block.lines, ANSWER)
    assert lines == ["fits: 9.0 of 79.2 GiB", "...", "  weights     12.5"]
    assert with_block(PAGE, block, lines).splitlines()[4:7] == lines


@pytest.mark.parametrize("lines", [["does-not-fit: 1 of 2 GiB"], ["fits: 1 of 2 GiB", "  weights 3"]])
def test_a_line_that_is_no_longer_printed_there_is_an_error(lines: list[str]) -> None:
    with pytest.raises(ValueError, match="is not printed any more"):
        brought_up_to_date(lines, ANSWER)


def test_a_figure_is_replaced_where_it_stands() -> None:
    sentence = Sentence("page.md", "takes {days:.0f} days on 4 H100", lambda: {"days": 14.4})
    assert sentence.brought_up_to_date("It takes 9\ndays on 4 H100.") == "It takes 14\ndays on 4 H100."
    with pytest.raises(ValueError, match="no longer says"):
        sentence.brought_up_to_date("It takes 9 days on 8 H100.")
