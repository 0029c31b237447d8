"""An axolotl YAML and a LLaMA-Factory YAML give the spec that one would write by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planner.dialects.imported import Imported
from tests.planner.imports import answers_alike, read

Read = Callable[..., Imported]
__all__ = ["read"]

AXOLOTL = {
    "lora": (
        """
        base_model: ./tiny
        model_type: AutoModelForCausalLM
        datasets: [{path: some/instructions, type: alpaca}]
        val_set_size: 0.05
        output_dir: ./lora-out
        sequence_len: 128
        sample_packing: true
        adapter: lora
        lora_r: 8
        lora_alpha: 16
        lora_dropout: 0.05
        lora_target_linear: true
        gradient_accumulation_steps: 4
        micro_batch_size: 2
        num_epochs: 4
        optimizer: adamw_bnb_8bit
        lr_scheduler: cosine
        learning_rate: 0.0002
        bf16: auto
        tf32: false
        gradient_checkpointing: true
        flash_attention: true
        warmup_steps: 10
        evals_per_epoch: 4
        """,
        """
        model: {config: tiny/config.json, task: causal-lm, attention: flash_attention_2,
                lora: {r: 8, alpha: 16, dropout: 0.05, target_modules: all-linear}}
        data: {sequence_length: 128}
        training: {precision: bf16, optimizer: adamw-8bit, micro_batch: 2, accumulation: 4, checkpointing: full}
        hardware: {gpu: a100-sxm4-80gb}
        """,
    ),
    "fsdp": (
        """
        base_model: tiny
        sequence_len: 128
        sample_packing: true
        micro_batch_size: 2
        gradient_accumulation_steps: 8
        max_steps: 1000
        optimizer: adamw_torch_fused
        bf16: true
        learning_rate: 2e-5
        fsdp_version: 2
        fsdp_config:
          offload_params: false
          cpu_ram_efficient_loading: true
          auto_wrap_policy: TRANSFORMER_BASED_WRAP
          transformer_layer_cls_to_wrap: LlamaDecoderLayer
          state_dict_type: FULL_STATE_DICT
          reshard_after_forward: true
          activation_checkpointing: true
        """,
        """
        model: {config: tiny/config.json, task: causal-lm}
        data: {sequence_length: 128, total: 1000 steps}
        training: {precision: bf16-mixed, optimizer: adamw, optimizer_implementation: fused, micro_batch: 2,
                   accumulation: 8, checkpointing: full, sharding: fsdp}
        hardware: {gpu: a100-sxm4-80gb, count: 4}
        """,
    ),
    "defaults": (
        """
        base_model: tiny
        learning_rate: 1e-5
        sequence_len: 128
        sdp_attention: true
        """,
        """
        model: {config: tiny/config.json, task: causal-lm}
        data: {sequence_length: 128}
        training: {precision: fp32, optimizer: adamw, optimizer_implementation: fused, micro_batch: 1}
        hardware: {gpu: a100-sxm4-80gb}
        """,
    ),
}
LLAMA_FACTORY = {
    "full": (
        """
        ### model
        model_name_or_path: tiny
        trust_remote_code: true
        ### method
        stage: sft
        do_train: true
        finetuning_type: full
        deepspeed: examples/deepspeed/ds_z2_config.json
        ### dataset
        dataset: identity,alpaca_en_demo
        template: llama3
        cutoff_len: 128
        max_samples: 1000
        ### train
        per_device_train_batch_size: 2
        gradient_accumulation_steps: 8
        learning_rate: 1.0e-5
        num_train_epochs: 3.0
        bf16: true
        ddp_timeout: 180000000
        """,
        4,
        """
        model: {config: tiny/config.json, task: causal-lm}
        data: {sequence_length: 128}
        training: {precision: bf16-mixed, optimizer: adamw, optimizer_implementation: fused, micro_batch: 2,
                   accumulation: 8, checkpointing: full, sharding: zero2}
        hardware: {gpu: a100-sxm4-80gb, count: 4}
        """,
    ),
    "lora": (
        """
        model_name_or_path: tiny
        stage: sft
        do_train: true
        finetuning_type: lora
        lora_rank: 8
        lora_target: all
        dataset: identity
        template: llama3
        cutoff_len: 128
        per_device_train_batch_size: 2
        gradient_accumulation_steps: 4
        lr_scheduler_type: cosine
        optim: adamw_bnb_8bit
        bf16: true
        flash_attn: fa2
        """,
        1,
        """
        model: {config: tiny/config.json, task: causal-lm, attention: flash_attention_2,
                lora: {r: 8, alpha: 16, target_modules: all-linear}}
        data: {sequence_length: 128}
        training: {precision: bf16, optimizer: adamw-8bit, micro_batch: 2, accumulation: 4, checkpointing: full}
        hardware: {gpu: a100-sxm4-80gb}
        """,
    ),
    "pretraining": (
        """
        model_name_or_path: tiny
        stage: pt
        finetuning_type: full
        cutoff_len: 128
        packing: true
        pure_bf16: true
        disable_gradient_checkpointing: true
        max_steps: 500
        per_device_train_batch_size: 1
        optim: adamw_torch
        """,
        1,
        """
        model: {config: tiny/config.json, task: causal-lm}
        data: {sequence_length: 128, total: 500 steps}
        training: {precision: bf16, optimizer: adamw, micro_batch: 1}
        hardware: {gpu: a100-sxm4-80gb}
        """,
    ),
}


@pytest.mark.parametrize("name", AXOLOTL)
def test_an_axolotl_yaml_answers_as_the_spec_by_hand(name: str, read: Read) -> None:
    given, by_hand = AXOLOTL[name]
    count = 4 if name == "fsdp" else None
    answers_alike(read(given, hardware__gpu="a100-sxm4-80gb", hardware__count=count), by_hand)


@pytest.mark.parametrize("name", LLAMA_FACTORY)
def test_a_llama_factory_yaml_answers_as_the_spec_by_hand(name: str, read: Read) -> None:
    given, count, by_hand = LLAMA_FACTORY[name]
    answers_alike(read(given, hardware__gpu="a100-sxm4-80gb", hardware__count=count), by_hand)


def test_axolotl_tells_what_a_spec_cannot_hold(read: Read) -> None:
    found = read(
        """
        base_model: tiny
        adapter: qlora
        lora_r: 16
        lora_alpha: 32
        lora_target_modules: [q_proj, v_proj]
        gradient_checkpointing: offload
        plugins: [axolotl.integrations.liger.LigerPlugin]
        brand_new_option: 5
        """
    )
    assert found.spec["model"]["lora"]["quantize"] == "nf4"
    assert found.not_understood == ["brand_new_option: 5"]
    assert any("plugins" in words and "only a fused loss is modelled" in words for words in found.assumed)
    assert any("gradient_checkpointing offload" in words for words in found.assumed)
    assert "sequence_length 512: the default of axolotl" in found.assumed


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("{base_model: tiny, adapter: qlora, lora_r: 8, lora_alpha: 16, fp16: true}", "fp16-mixed"),
        ("{base_model: tiny, adapter: lora, lora_r: 8, lora_alpha: 16, fp16: true}", "bf16"),
        (
            "{model_name_or_path: tiny, stage: sft, finetuning_type: lora, quantization_bit: 4, fp16: true}",
            "fp16-mixed",
        ),
        ("{model_name_or_path: tiny, stage: sft, finetuning_type: lora, fp16: true}", "bf16"),
        ("{model_name_or_path: tiny, stage: sft, finetuning_type: full, fp16: true}", "fp16-mixed"),
        ("{model_name_or_path: tiny, stage: sft, finetuning_type: full, bf16: true, fp8: true}", "fp8-mixed"),
        ("{base_model: tiny, bf16: true, fp8: true}", "fp8-mixed"),
    ],
)
def test_low_precisions_are_said_as_they_are_where_a_spec_can(text: str, precision: str, read: Read) -> None:
    found = read(text)
    assert found.spec["training"]["precision"] == precision
    assert any("a GPU without bf16 takes fp16-mixed" in words for words in found.assumed) == (precision == "bf16")


@pytest.mark.parametrize(
    "text",
    [
        "{base_model: tiny, liger_fused_linear_cross_entropy: true}",
        "{base_model: tiny, cut_cross_entropy: true}",
        "{model_name_or_path: tiny, stage: sft, finetuning_type: full, enable_liger_kernel: true}",
    ],
)
def test_losses_without_whole_logits_are_said(text: str, read: Read) -> None:
    assert read(text).spec["training"]["loss"] == "fused-linear"


def test_axolotl_meshes_say_the_gpus(read: Read) -> None:
    spec = read(
        "{base_model: tiny, dp_shard_size: 4, dp_replicate_size: 2, tensor_parallel_size: 2, fsdp_version: 2}"
    ).spec
    assert (spec["training"]["sharding"], spec["training"]["tensor_parallel"]) == ("hsdp", 2)
    assert (spec["hardware"]["count"], spec["hardware"]["gpus_per_node"]) == (16, 8)


def test_llama_factory_tells_what_a_spec_cannot_hold(read: Read) -> None:
    found = read("{model_name_or_path: tiny, stage: dpo, template: x, use_galore: true, quantization_bit: 8, odd: 1}")
    assert found.not_understood == ["odd: 1"]
    assert any(words.startswith("stage dpo") for words in found.assumed)
    assert any(words.startswith("use_galore: True") for words in found.assumed)
    assert any("quantization_bit 8" in words for words in found.assumed)
    assert found.spec["training"]["micro_batch"] == 8
    assert found.spec["data"]["sequence_length"] == 2048


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=4 llamafactory-cli train run.yaml", 8),
        ("CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train run.yaml", 2),
    ],
)
def test_the_command_names_the_yaml(line: str, count: int, read: Read) -> None:
    files = {"run.sh": line, "run.yaml": LLAMA_FACTORY["pretraining"][0]}
    spec = read(files, only=("run.sh",)).spec
    assert spec["hardware"]["count"] == count
    assert spec["data"] == {"sequence_length": 128, "total": "500 steps"}


def test_llama_factory_options_may_stand_in_the_command(read: Read) -> None:
    spec = read(
        "llamafactory-cli train --stage sft --model_name_or_path tiny --finetuning_type full --pure_bf16 True"
    ).spec
    assert spec["training"]["precision"] == "bf16"
    assert spec["training"]["checkpointing"] == "full"


@pytest.mark.parametrize(
    "line", ["axolotl train run.yml", "accelerate launch --num_processes 4 -m axolotl.cli.train run.yml"]
)
def test_axolotl_commands_name_the_yaml(line: str, read: Read) -> None:
    spec = read({"run.sh": line, "run.yml": AXOLOTL["fsdp"][0]}, only=("run.sh",)).spec
    assert spec["training"]["sharding"] == "fsdp"
    assert spec["hardware"]["count"] == (4 if "processes" in line else 1)
