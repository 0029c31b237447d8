"""Rows of published tables of several GPUs: what becomes a spec, and why the others do not."""

from __future__ import annotations

import pytest
import torch

from calibrate.llm_sources import COLUMNS, Run, runs
from calibrate.models import megatron, mpt

BLANK = dict.fromkeys(COLUMNS, "")
FOUNDRY = {
    **BLANK,
    "source": "mosaicml/llm-foundry MPT training benchmarks", "source_where": "README", "arch_family": "mpt",
    "gpu": "A100-SXM4-40GB", "n_gpus": "64", "n_layers": "12", "d_model": "768", "n_heads": "12", "seq_len": "2048",
    "precision": "bf16", "zero_or_fsdp": "fsdp", "act_ckpt": "none", "tp": "1", "pp": "1", "cp": "1",
    "micro_batch": "26", "grad_accum": "1", "tokens_per_s_per_gpu": "125234",
}  # fmt: skip
TITAN = {
    **FOUNDRY, "source": "torchtitan docs/performance.md (A100)", "model": "Llama-2-13B", "gpu": "A100-SXM4-80GB",
    "zero_or_fsdp": "fsdp2", "seq_len": "4096", "micro_batch": "2", "tokens_per_s_per_gpu": "2162",
}  # fmt: skip
MEGATRON = {
    **FOUNDRY, "source": "Megatron-LM 2021 paper", "gpu": "A100-SXM4-80GB", "n_gpus": "384", "n_layers": "96",
    "d_model": "12288", "n_heads": "96", "vocab": "51200", "precision": "fp16", "zero_or_fsdp": "zero3",
    "act_ckpt": "full", "micro_batch": "4", "grad_accum": "", "global_batch_seqs": "1536", "tflops_per_gpu": "144",
    "tokens_per_s_per_gpu": "",
}  # fmt: skip
LIBAI = {
    **MEGATRON, "source": "LiBai vs Megatron-LM benchmark", "model": "GPT-2 L24 h1024 (Megatron-LM (PyTorch))",
    "arch_family": "gpt-2", "gpu": "V100-SXM2 (memory size not stated)", "n_gpus": "8", "tp": "2",
    "zero_or_fsdp": "none", "micro_batch": "32", "global_batch_seqs": "1024", "tokens_per_s_per_gpu": "9369.6",
}  # fmt: skip


def run_of(row: dict[str, str]) -> Run:
    (run,) = runs([row])
    assert isinstance(run, Run), run
    return run


def test_a_row_that_says_enough_becomes_a_spec() -> None:
    run = run_of(FOUNDRY)
    assert run.source == "mosaicml/llm-foundry"
    assert run.spec["model"] == {"module": "calibrate.models.mpt:mpt_12_768_12_2048"}
    assert run.spec["hardware"] == {"gpu": "a100-sxm4-40gb", "count": 64, "node": "dgx-a100-40gb"}
    assert run.tokens_per_second_per_gpu == 125234


def test_a_model_of_a_preset_attends_by_the_kernel_that_its_source_does() -> None:
    run = run_of(TITAN)
    assert run.spec["model"] == {"name": "llama-2-13b", "attention": "flash_attention_2"}
    assert run.spec["training"]["compile"] is False  # train_configs/llama2_13b.toml of that commit


def test_accumulation_follows_from_the_global_batch_and_the_ranks_that_share_no_layer() -> None:
    run = run_of(LIBAI)
    assert run.spec["training"]["accumulation"] == 8  # 1024 samples over 4 ranks of 32
    assert run.spec["training"]["tensor_parallel"] == 2


def test_a_rate_in_the_papers_own_flop_is_told_in_tokens() -> None:
    run = run_of(MEGATRON)
    assert run.spec["training"]["sharding"] == "zero3"
    assert run.tokens_per_second_per_gpu == pytest.approx(100.4, abs=0.1)  # 144 TFLOP/s of 174.6B, recomputing


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**FOUNDRY, "source": "NVIDIA NeMo"}, "checkpointing and the sharding of the optimizer not stated"),
        ({**FOUNDRY, "source": "a table"}, "no adapter"),
        ({**FOUNDRY, "gpu": "H100-SXM-96GB-HBM2e-500W"}, "GPU not in the catalog"),
        ({**FOUNDRY, "precision": "fp8"}, "precision fp8 is no knob"),
        ({**FOUNDRY, "pp": "8"}, "pipeline or context parallel"),
        ({**TITAN, "act_ckpt": "selective"}, "selective checkpointing of every second product"),
        ({**FOUNDRY, "source": "IBM/Meta fms-fsdp"}, "gradients are reduced in bf16"),
        ({**LIBAI, "n_gpus": "16"}, "the link between nodes is not stated"),
        ({**LIBAI, "model": "GPT-2 (LiBai (OneFlow))"}, "OneFlow is no torch"),
        ({**MEGATRON, "global_batch_seqs": "1000"}, "global batch is no multiple"),
    ],
)
def test_a_row_that_does_not_is_left_out_with_the_reason(row: dict[str, str], reason: str) -> None:
    (found,) = runs([row])
    assert isinstance(found, str)
    assert reason in found


def test_mpt_has_the_parameters_that_its_table_says() -> None:
    module, inputs = mpt.mpt_12_768_12_2048(2)
    assert sum(parameter.numel() for parameter in module.parameters()) == 125_311_488  # the row's own count
    assert inputs["tokens"].shape == (2, 2048)
    with pytest.raises(AttributeError):
        mpt.mpt_12  # noqa: B018


def test_megatron_has_the_parameters_that_its_paper_says() -> None:
    with torch.device("meta"):
        module, _ = megatron.megatron_96_12288_96_2048(1)
    assert sum(parameter.numel() for parameter in module.parameters()) == pytest.approx(174.6e9, rel=0.001)
    assert "tokens" in module.tp_plan
    with pytest.raises(AttributeError):
        megatron.megatron_12  # noqa: B018
