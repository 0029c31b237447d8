"""Rows of published tables become specs that say what their source says; what is not said is not guessed."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import planner
from calibrate import check, published
from calibrate.models.nanogpt import gpt2_124m
from planner.answer import Estimate
from planner.spec import Spec

COLUMNS = (
    "source", "source_where", "model", "arch_family", "params", "n_layers", "d_model", "n_heads", "d_ff", "vocab",
    "seq_len", "gpu", "gpu_mem_gb", "n_gpus", "precision", "optimizer", "micro_batch", "grad_accum", "zero_or_fsdp",
    "act_ckpt", "flash_attn", "compile", "offload", "step_time_s", "tokens_per_s_per_gpu", "peak_mem_gib", "oom",
    "notes",
)  # fmt: skip
RENTAL: dict[str, Any] = {
    "source": "GPT-2 124M cross-GPU rental benchmark (public GitHub script header)", "model": "GPT-2 124M",
    "n_layers": 12, "d_model": 768, "n_heads": 12, "vocab": 50304, "seq_len": 1024, "gpu": "RTX6000Ada",
    "gpu_mem_gb": 48, "n_gpus": 1, "precision": "bf16", "optimizer": "adamw-fused", "micro_batch": 32,
    "grad_accum": 16, "act_ckpt": "none", "compile": "true", "offload": "none", "step_time_s": 4.89275,
    "peak_mem_gib": 24.0, "oom": "false",
}  # fmt: skip
BERT: dict[str, Any] = {
    "source": "Lambda deeplearning-benchmark v1", "model": "bert-base-uncased (SQuAD fine-tune)", "seq_len": 384,
    "gpu": "RTX4090", "gpu_mem_gb": 24, "n_gpus": 1, "precision": "fp16", "optimizer": "adam", "micro_batch": 96,
    "grad_accum": 1, "act_ckpt": "none", "compile": "false", "offload": "none", "step_time_s": 0.32323,
}  # fmt: skip


def record(row: dict[str, Any]) -> dict[str, Any]:
    plain = {name: str(row.get(name, "")) for name in COLUMNS}
    return published.records([plain])[0]


def test_a_row_says_its_batch_precision_compilation_and_memory() -> None:
    found = record(RENTAL)
    spec = Spec.load(found["spec"])
    assert spec.training.compile == (True,)
    assert (spec.training.micro_batch, spec.training.accumulation) == ((32,), (16,))
    assert (spec.training.precision, spec.training.optimizer_implementation) == (("bf16-mixed",), ("fused",))
    assert spec.hardware[0].gpu == ("rtx-6000-ada",)
    assert found["spec"]["model"] == {"module": "calibrate.models.nanogpt:gpt2_124m"}
    assert found["step_seconds"] == 4.89275
    assert found["device_bytes"] == 24 << 30


@pytest.mark.parametrize(
    ("precision", "optimizer", "implementation"),
    [("fp16", "adam", "foreach"), ("tf32", "adamw", "for-loop"), ("fp32", "adamw", "for-loop")],
)
def test_deep_learning_examples_step_bert_in_loops_unless_in_fp16(
    precision: str, optimizer: str, implementation: str
) -> None:
    """run_squad.py: apex's FusedAdam with `--fp16`, else BertAdam, of plain loops with weight decay."""
    training = Spec.load(record({**BERT, "precision": precision})["spec"]).training
    assert (training.optimizer, training.optimizer_implementation) == ((optimizer,), (implementation,))
    assert training.max_grad_norm == (1.0,)


@pytest.mark.parametrize(
    ("notes", "libraries"),
    [
        ("AMP/apex-O2 mixed precision; torch 1.7.0a0+7036e91; 3 log(s) averaged;", "torch 1.7"),
        ("seq padded to 384; NGC pytorch 22.09-era image; list price", "NGC pytorch 22.09"),
        ("unit=images/s; 2024-25 NGC image (24.x/25.x);", "2024-25 NGC"),
        ("unit=sequences/s", None),
    ],
)
def test_a_row_says_what_libraries_it_ran_under(notes: str, libraries: str | None) -> None:
    assert record({**BERT, "notes": notes}).get("libraries") == libraries


def test_deep_learning_examples_clip_nothing_of_resnet() -> None:
    row = {**BERT, "model": "ResNet50 v1.5", "optimizer": "", "seq_len": ""}
    training = Spec.load(record(row)["spec"]).training
    assert (training.optimizer, training.max_grad_norm) == (("sgd",), (None,))


def test_the_rental_benchmarks_model_has_the_parameters_that_its_rows_say() -> None:
    module, inputs = gpt2_124m(2)
    assert sum(parameter.numel() for parameter in module.parameters()) == 124_475_904
    assert inputs["tokens"].shape == (2, 1024)


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "micro_batch", "used_gib"), [("A100-PCIE-80GB", 32, 24.01), ("RTXA5000", 16, 12.42)])
def test_the_rental_benchmarks_memory_is_that_of_nvidia_smi(gpu: str, micro_batch: int, used_gib: float) -> None:
    memory_gb = 80 if gpu.startswith("A100") else 24
    asked = record(
        {**RENTAL, "gpu": gpu, "gpu_mem_gb": memory_gb, "micro_batch": micro_batch, "peak_mem_gib": used_gib}
    )
    found = planner.fits(asked["spec"])
    assert isinstance(found, Estimate)
    assert found.memory.device_bytes == pytest.approx(asked["device_bytes"], rel=0.05)


def test_apex_o2_is_fp16_with_fp32_copies_and_tf32_stays_tf32() -> None:
    assert record(BERT)["spec"]["training"]["precision"] == "fp16"
    assert record({**BERT, "precision": "tf32"})["spec"]["training"]["precision"] == "tf32"
    assert record(BERT)["spec"]["model"] == {"module": "calibrate.models.squad:bert_base"}


def test_a_rate_of_tokens_becomes_the_seconds_of_a_step() -> None:
    found = record({**BERT, "step_time_s": "", "tokens_per_s_per_gpu": 114048.0})
    assert found["step_seconds"] == pytest.approx(96 * 384 / 114048.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n_gpus": 8}, "several GPUs"),
        ({"gpu": "GTX1080Ti"}, "not in the catalog: GTX1080Ti"),
        ({"gpu": "H100-80GB"}, "the form of H100-80GB is not stated"),
        ({"micro_batch": ""}, "micro-batch not stated"),
        ({"precision": ""}, "precision not stated"),
        ({"model": "GNMT v2"}, "lengths vary and are not stated"),
        ({"offload": "cpu"}, "offload of cpu not modelled"),
        ({"step_time_s": ""}, "no time of a step"),
        ({"oom": "true"}, "ran out of memory"),
        ({"source": "ms-swift benchmark page"}, "samples of variable length"),
    ],
)
def test_a_row_that_lacks_what_matters_is_left_out_with_the_reason(change: dict[str, Any], reason: str) -> None:
    found = record({**BERT, **change})
    assert reason in found["error"]
    assert "step_seconds" not in found


def test_the_same_run_in_two_tables_counts_once() -> None:
    plain = {name: str(BERT.get(name, "")) for name in COLUMNS}
    assert [("error" in item) for item in published.records([plain, plain])] == [False, True]


def test_a_measured_training_point_of_another_tool_has_no_optimizer_step() -> None:
    inputs = {"model": "bert_large", "seq_len": 512, "gpu": "L4", "precision": "fp32", "n_gpus": 1, "micro_batch": 8}
    row = {
        "source": "sitar-lab/NeuSight", "where": "summary.csv", "quantity": "training fwd+bwd latency",
        "inputs_json": json.dumps(inputs), "expected": "1275.441", "unit": "ms", "notes": "kind=measured",
    }  # fmt: skip
    found = published.records([row])[0]
    assert found["gradient_seconds"] == pytest.approx(1.275441)
    assert "step_seconds" not in found
    assert "error" in published.records([{**row, "notes": "kind=tool_output"}])[0]


def test_check_reads_a_published_table_and_tells_what_it_left_out(tmp_path: Path) -> None:
    path = tmp_path / "tables.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows([RENTAL, {**BERT, "gpu": "GTX1080Ti"}])
    records = check.read(path)
    assert [item["name"].split(": ")[1] for item in records] == [
        "GPT-2 124M RTX6000Ada bf16 b32 x16 compiled",
        "bert-base-uncased (SQuAD fine-tune) GTX1080Ti fp16 b96",
    ]
    _, left_out = check.compared(records[1:])
    assert left_out == [(records[1]["name"], "GPU not in the catalog: GTX1080Ti")]


def test_the_rows_used_are_kept_and_every_one_is_a_spec() -> None:
    path = Path(__file__).parents[1] / "measured" / "published.jsonl"
    records = check.read(path)
    assert len(records) > 200
    for item in records:
        Spec.load(item["spec"])
        assert item["source_where"]
        assert item.get("step_seconds") or item.get("gradient_seconds")
