"""One rank of several, here on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from calibrate import one_rank
from catalog.errors import RigplanError


def spec(sharding: str) -> dict[str, Any]:
    return {
        "model": {"name": "pythia-14m"},
        "data": {"sequence_length": 16},
        "training": {"precision": "bf16-mixed", "micro_batch": 1, "sharding": sharding},
        "hardware": {"gpu": "h200-sxm", "count": 2},
    }


def test_a_rank_of_fsdp_steps_in_a_process_of_its_own(tmp_path: Path) -> None:
    asked, told = tmp_path / "asked.jsonl", tmp_path / "told.jsonl"
    asked.write_text(json.dumps({"name": "mine", "spec": spec("fsdp")}) + "\n")
    done = CliRunner().invoke(one_rank.main, [str(asked), "-o", str(told), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    record = json.loads(told.read_text())
    assert record["name"] == "mine"
    assert record["least_step_seconds"] > 0


def test_a_rank_of_ddp_steps_alone_in_its_group() -> None:
    assert one_rank.run(spec("none"), "cpu")["least_step_seconds"] > 0
    assert not torch.distributed.is_initialized()


def test_other_shardings_are_refused() -> None:
    with pytest.raises(RigplanError, match="zero2"):
        one_rank.run(spec("zero2"), "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_what_is_wanted(tmp_path: Path) -> None:
    asked = tmp_path / "asked.jsonl"
    asked.write_text(json.dumps({"name": "mine", "spec": spec("fsdp")}) + "\n")
    done = CliRunner().invoke(one_rank.main, [str(asked), "-o", str(tmp_path / "told.jsonl")])
    assert done.exit_code == 2
    assert "found no GPU" in done.output
