"""Published multi-GPU runs as specs, and how far predictions are from them."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner

from calibrate.cli import calibrate
from calibrate.llm_sources import Run, runs
from calibrate.llm_tables import Compared, compare, read, report, scaling
from catalog.errors import RigplanError
from tests.calibrate.test_llm_sources import FOUNDRY

KEPT = Path(__file__).parents[1] / "measured" / "llm_tables.jsonl"
# Median error of the step time by source and GPU, and the most that speed kept over GPU counts may be off: they may
# only go down. llm-foundry's runs are of 2023 (torch 1.13 and, on H100, 2.0.1), when libraries were slower;
# Megatron-LM cuts its loss by words and hides a third of its all-reduces, which torch's own tensor parallel does not.
BOUNDS = {
    ("mosaicml/llm-foundry", "a100-sxm4-40gb"): 0.085,
    ("mosaicml/llm-foundry", "a100-sxm4-80gb"): 0.055,
    ("mosaicml/llm-foundry", "h100-sxm5-80gb"): 0.135,
    ("torchtitan docs/performance.md", "a100-sxm4-80gb"): 0.09,
    ("LiBai vs Megatron-LM benchmark", "v100-sxm2-32gb"): 0.095,
    ("Megatron-LM on V100", "v100-sxm2-16gb"): 0.125,
}
ALL, SCALING = 0.09, 0.10
LENGTH = 2048  # of llm-foundry's runs that are judged here: the others take long to trace
HUGE = "megatron_(48|96|105)_|mpt_80_|llama-2-70b"  # of 22B and more: minutes to trace


def run_of(count: int, tokens: float) -> Run:
    (run,) = runs([{**FOUNDRY, "n_gpus": str(count), "tokens_per_s_per_gpu": str(tokens)}])
    assert isinstance(run, Run)
    return run


def test_the_report_tells_errors_by_source_gpu_and_count_and_how_speed_scales() -> None:
    compared = [Compared(run_of(8, 100), 110.0), Compared(run_of(128, 90), 99.0), Compared(run_of(16, 90), None, "why")]
    assert [item.error for item in compared[:2]] == pytest.approx([-1 / 11, -1 / 11])
    ((_, few, many, measured, predicted),) = scaling(compared)
    assert (few, many, measured, predicted) == (8, 128, 0.9, pytest.approx(0.9))
    text = "\n".join(report(compared))
    assert "2 of 3 runs compared" in text
    assert "8 to 128 GPUs keep 90% of the speed, predicted 90%" in text
    assert "left out: 1 x why" in text


def test_a_file_that_holds_none_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"a": 1}\n')
    with pytest.raises(RigplanError, match="holds no published runs"):
        read(other)
    done = CliRunner().invoke(calibrate, ["tables", str(other)])
    assert done.exit_code == 2


def test_a_table_of_something_else_is_refused_in_one_line(tmp_path: Path) -> None:
    table = tmp_path / "prices.csv"
    table.write_text("source,usd\nmosaicml/llm-foundry,2\n")
    done = CliRunner().invoke(calibrate, ["tables", str(table)])
    assert done.exit_code == 2
    assert "found no column source_where, model, arch_family" in done.output


@pytest.mark.slow
def test_predictions_of_published_runs_get_no_worse() -> None:
    kept = [run for run in read(KEPT) if judged(run)]
    done = compare(kept)
    assert [item.reason for item in done if item.predicted is None] == []
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for item in done:
        errors[item.run.source, item.run.gpu].append(abs(item.error))
    for which, found in errors.items():
        assert median(found) <= BOUNDS[which], which
    assert median(abs(item.error) for item in done) <= ALL
    for what, few, many, measured, predicted in scaling(done):
        assert predicted / measured == pytest.approx(1.0, abs=SCALING), (what, few, many)


def judged(run: Run) -> bool:
    long = run.source == "mosaicml/llm-foundry" and run.spec["data"]["sequence_length"] != LENGTH
    return not long and not re.search(HUGE, run.model)
