"""Advice is what the changed spec answers, shown only where it helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import planner
from planner.advice import ADVICE, Change, _sets, advise
from planner.explained import explain
from planner.explanation import Advice, Explanation, best
from planner.padding import config_of, padded_vocabulary, padded_widths
from planner.report.explanation import advice as told
from planner.report.explanation import page
from planner.spec import Spec, TrainingSpec
from tests.planner.test_search import spec

NAIVE = {"precision": "fp32", "micro_batch": 2, "global_batch": 8, "checkpointing": "full"}
TRAINING = TrainingSpec.model_fields


def eager(training: dict[str, Any]) -> dict[str, Any]:
    asked = spec(training, {"gpu": "a100-sxm4-80gb"})
    return {**asked, "model": {**asked["model"], "attention": "eager"}}


@pytest.fixture(scope="module", autouse=True)
def _no_compiled_traces() -> Iterator[None]:
    """Compiling a model takes longer than everything else here, and has tests of its own."""
    rest = tuple(item for item in ADVICE if not (isinstance(item, Change) and "compile" in item.fields))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.advice.ADVICE", rest)
        yield


@pytest.fixture(scope="module")
def naive(_no_compiled_traces: None) -> Explanation:
    return explain(eager(NAIVE))


def test_each_piece_saves_the_difference_of_two_estimates(naive: Explanation) -> None:
    """Each change is written into the spec by hand, as it is told."""
    assert naive.estimate.step is not None
    kinds = {name for item in naive.advice for name in item.sets}
    assert kinds >= {"attention", "micro_batch", "checkpointing", "optimizer_implementation"}
    for item in naive.advice:
        knobs = yaml.safe_load(f"{{{item.change}}}")
        asked = eager({**NAIVE, **{name: value for name, value in knobs.items() if name in TRAINING}})
        asked["model"]["attention"] = knobs.get("attention", "eager")
        changed = planner.estimate(asked)
        assert changed.step is not None
        assert item.saved_seconds == pytest.approx(naive.estimate.step.seconds - changed.step.seconds, rel=1e-6), item


def test_only_what_helps_is_shown_best_first(naive: Explanation) -> None:
    assert naive.estimate.step is not None
    saved = [item.saved_seconds for item in naive.advice]
    assert saved == sorted(saved, reverse=True)
    assert min(saved) > 0.005 * naive.estimate.step.seconds
    assert any(item.change.startswith("micro_batch: ") for item in naive.advice)
    assert {item.estimate.strategy.global_batch for item in naive.advice} == {8}


def test_three_are_named_and_answered_together(naive: Explanation) -> None:
    assert len(naive.best_advice) == 3
    assert naive.together is not None
    assert naive.together.saved_seconds > naive.advice[0].saved_seconds
    text = told(naive, width=80)
    assert "What would help most" in text
    assert all(f"{place}. {item.change}" in text for place, item in enumerate(naive.best_advice, 1))
    assert max(map(len, text.splitlines())) <= 80


def test_of_alternatives_the_better_is_named(naive: Explanation) -> None:
    def piece(change: str, *sets: str) -> Advice:
        return naive.advice[0].model_copy(update={"change": change, "sets": list(sets)})

    ordered = [piece("a", "precision"), piece("b", "precision"), piece("c", "x"), piece("d", "y"), piece("e", "z")]
    assert [item.change for item in best(ordered)] == ["a", "c", "d"]


def test_where_nothing_helps_nothing_is_said() -> None:
    found = planner.estimate(spec({"optimizer_implementation": "fused"}, {"gpu": "h200-sxm"}))
    asked = Spec.load(spec({"optimizer_implementation": "fused"}, {"gpu": "h200-sxm"}))
    from planner.explained import combination

    helping, together = advise(asked, found, combination(asked, found), [])
    assert [item.change for item in helping if not item.change.startswith("vocab_size")] == []
    assert together is None
    nothing = explain(asked, advice=False)
    assert "nothing that was tried makes it better" in told(nothing)


def test_what_does_not_fit_is_told_what_would_make_it_fit() -> None:
    small = {"gpu": "rtx-3090", "memory_limit": "256 MiB"}  # as in test_ladder
    found = explain(spec({"micro_batch": 64, "precision": "fp32"}, small))
    assert found.estimate.verdict == "does-not-fit"
    assert found.advice[0].estimate.verdict == "fits"
    assert found.advice[0].saved_bytes > 0
    assert "It runs out of memory" in page(found)
    assert told(found).startswith("\nWhat makes it fit: each alone")


def test_every_knob_of_the_list_is_one_of_the_spec() -> None:
    knobs = {name for item in ADVICE if isinstance(item, Change) for name in item.fields}
    assert knobs <= {*Spec.load(spec()).training.model_dump(), "attention"}


@pytest.mark.parametrize(
    ("name", "size", "wanted"),
    [("gpt2", 50_257, 50_304), ("bert-base", 30_522, 30_528), ("pythia-160m", 50_304, None)],
)
def test_a_vocabulary_is_padded_to_whole_tiles(name: str, size: int, wanted: int | None) -> None:
    asked = Spec.load({**spec(), "model": {"name": name}, "data": {}})
    assert (config_of(asked) or {})["vocab_size"] == size
    found = padded_vocabulary(asked)
    assert (found is None) == (wanted is None)
    if found is not None:
        changed, change, why = found
        assert change == f"vocab_size: {wanted}"
        assert why == f"{size} is no multiple of 64"
        assert isinstance(changed.model.config, dict)
        assert changed.model.config["vocab_size"] == wanted
        assert changed.model.task is not None


def test_widths_are_padded_so_that_heads_still_divide_them() -> None:
    config = {"model_type": "gpt2", "n_embd": 480, "n_head": 20, "n_inner": 1000}
    found = padded_widths(Spec.load({**spec(), "model": {"config": config}}))
    assert found is not None
    assert found[1] == "n_embd: 640, n_inner: 1024"
    assert padded_widths(Spec.load(spec())) is None


@pytest.fixture
def no_other(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Leave the changes of one knob alone: each is answered apart from the others."""

    def leave(knob: str) -> None:
        kept = [item for item in ADVICE if knob in _sets(item)]
        assert kept
        monkeypatch.setattr("planner.advice.ADVICE", tuple(kept))

    return leave


def test_a_padded_vocabulary_saves_what_its_products_lose(no_other: Callable[[str], None]) -> None:
    """bf16 products with 50,257 rows run far below those with 50,304 (see the H200's own timings)."""
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 256, "n_head": 4, "vocab_size": 50_257, "n_positions": 512}
    asked = {**spec({"micro_batch": 16}, {"gpu": "h200-sxm"}), "model": {"config": config}}
    no_other("vocabulary")
    (padded,) = [item for item in explain(asked).advice if item.change == "vocab_size: 50304"]
    assert padded.saved_seconds > 0
    assert padded.estimate.parameters > 50_257 * 256


def test_padded_widths_save_what_narrow_alignment_loses(no_other: Callable[[str], None]) -> None:
    """Rows of 1,020 bf16 numbers begin at multiples of 8 bytes, and a head of 255 is cut in no whole tiles."""
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 1020, "n_head": 4, "vocab_size": 64, "n_positions": 256}
    asked = {
        **spec({"micro_batch": 16, "optimizer_implementation": "fused"}, {"gpu": "h200-sxm"}),
        "model": {"config": config},
    }
    no_other("widths")
    found = explain(asked)
    (padded,) = [item for item in found.advice if item.change == "n_embd: 1024"]
    by_hand = planner.estimate({**asked, "model": {"config": {**config, "n_embd": 1024}}})
    assert found.estimate.step is not None
    assert by_hand.step is not None
    assert padded.saved_seconds == pytest.approx(found.estimate.step.seconds - by_hand.step.seconds, rel=1e-6)


@pytest.mark.parametrize("precision", ["tf32", "bf16-mixed"])
def test_matrix_units_are_advised_where_products_take_the_time(precision: str, no_other: Callable[[str], None]) -> None:
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 1024, "n_head": 16, "vocab_size": 64, "n_positions": 256}
    training = {"precision": "fp32", "micro_batch": 16, "optimizer_implementation": "fused"}
    asked = {**spec(training, {"gpu": "h200-sxm"}), "model": {"config": config}}
    no_other("precision")
    found, changed = explain(asked), planner.estimate({**asked, "training": {**training, "precision": precision}})
    (piece,) = [item for item in found.advice if item.change == f"precision: {precision}"]
    assert found.estimate.step is not None
    assert changed.step is not None
    assert piece.saved_seconds == pytest.approx(found.estimate.step.seconds - changed.step.seconds, rel=1e-6)


MASKED = """
import torch
from torch import nn

class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_qkv = nn.Linear(256, 768)

    def forward(self, x, mask):
        q, k, v = (part.unflatten(-1, (4, 64)).transpose(1, 2) for part in self.to_qkv(x).chunk(3, dim=-1))
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).square().mean()

def make(batch_size):
    return Masked(), {"x": torch.zeros(batch_size, 512, 256), "mask": MASK}
"""


@pytest.mark.parametrize(
    ("mask", "needless"),
    [
        ("torch.ones(512, 512, dtype=torch.bool)", True),
        ("torch.ones(512, 512, dtype=torch.bool).tril()", True),
        ("torch.ones(512, 512, dtype=torch.bool).tril(3)", False),
    ],
)
def test_a_mask_that_hides_nothing_is_told_with_what_it_costs(
    mask: str, needless: bool, tmp_path: Path, no_other: Callable[[str], None]
) -> None:
    file = tmp_path / "masked.py"
    file.write_text(MASKED.replace("MASK}", f"{mask}}}"))
    no_other("drop_masks")
    found = explain({**spec({"micro_batch": 64}), "model": {"module": f"{file}:make"}})
    told = [item for item in found.advice if item.sets == ["drop_masks"]]
    assert len(told) == needless
    assert any(row.shape.get("mask") for row in found.time if row.kind == "attention")
