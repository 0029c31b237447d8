"""A DeepSpeed JSON and an accelerate YAML, alone and beside a command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from catalog.errors import RigplanError
from planner.dialects.imported import Imported
from tests.planner.imports import answers_alike, read

Read = Callable[..., Imported]
__all__ = ["read"]
GIVEN = {"model__name": "tiny", "hardware__gpu": "a100-sxm4-80gb", "data__sequence_length": 128}

DEEPSPEED = {
    # numbers, no Trainer: the third batch size follows from the other two
    "zero2": (
        """
        {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "steps_per_print": 100,
         "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}},
         "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}},
         "gradient_clipping": 1.0, "bf16": {"enabled": true},
         "zero_optimization": {"stage": 2, "contiguous_gradients": true, "overlap_comm": true,
                               "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8}}
        """,
        4,
        """
        model: {config: tiny/config.json}
        data: {sequence_length: 128}
        training: {precision: bf16-mixed, optimizer: adamw, micro_batch: 2, global_batch: 64, sharding: zero2}
        hardware: {gpu: a100-sxm4-80gb, count: 4}
        """,
    ),
    # all "auto": what Hugging Face's Trainer takes by itself
    "auto": (
        """
        {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
         "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
         "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false}
        """,
        4,
        """
        model: {config: tiny/config.json}
        data: {sequence_length: 128}
        training: {precision: fp32, optimizer: adamw, optimizer_implementation: fused, micro_batch: 8, accumulation: 1,
                   sharding: zero2}
        hardware: {gpu: a100-sxm4-80gb, count: 4}
        """,
    ),
    # no ZeRO, fp16, and no clipping because DeepSpeed clips only when told
    "plain": (
        """
        {"train_micro_batch_size_per_gpu": 2, "fp16": {"enabled": true, "initial_scale_power": 16},
         "optimizer": {"type": "Adam", "params": {"lr": 1e-4}}}
        """,
        1,
        """
        model: {config: tiny/config.json}
        data: {sequence_length: 128}
        training: {precision: fp16-mixed, optimizer: adamw, micro_batch: 2, max_grad_norm: null}
        hardware: {gpu: a100-sxm4-80gb}
        """,
    ),
}

ACCELERATE = {
    "fsdp": (
        """
        compute_environment: LOCAL_MACHINE
        distributed_type: FSDP
        downcast_bf16: 'no'
        fsdp_config:
          fsdp_activation_checkpointing: true
          fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
          fsdp_offload_params: false
          fsdp_reshard_after_forward: true
          fsdp_state_dict_type: SHARDED_STATE_DICT
          fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
          fsdp_version: 2
        machine_rank: 0
        main_training_function: main
        mixed_precision: bf16
        num_machines: 1
        num_processes: 4
        rdzv_backend: static
        same_network: true
        use_cpu: false
        """,
        """
        model: {config: tiny/config.json}
        data: {sequence_length: 128}
        training: {precision: bf16-mixed, optimizer: adamw, optimizer_implementation: fused, micro_batch: 2,
                   accumulation: 8, checkpointing: full, sharding: fsdp}
        hardware: {gpu: a100-sxm4-80gb, count: 4}
        """,
    ),
    "deepspeed": (
        """
        compute_environment: LOCAL_MACHINE
        deepspeed_config:
          deepspeed_multinode_launcher: standard
          gradient_accumulation_steps: 8
          gradient_clipping: 0.0
          offload_optimizer_device: none
          offload_param_device: none
          zero3_init_flag: false
          zero_stage: 2
        distributed_type: DEEPSPEED
        mixed_precision: fp16
        num_machines: 1
        num_processes: 4
        """,
        """
        model: {config: tiny/config.json}
        data: {sequence_length: 128}
        training: {precision: fp16-mixed, optimizer: adamw, optimizer_implementation: fused, micro_batch: 2,
                   accumulation: 8, sharding: zero2, max_grad_norm: null}
        hardware: {gpu: a100-sxm4-80gb, count: 4}
        """,
    ),
    "ddp": (
        """
        compute_environment: LOCAL_MACHINE
        distributed_type: MULTI_GPU
        gpu_ids: all
        mixed_precision: no
        num_machines: 2
        num_processes: 4
        """,
        """
        model: {config: tiny/config.json}
        data: {sequence_length: 128}
        training: {precision: fp32, optimizer: adamw, optimizer_implementation: fused, micro_batch: 2, accumulation: 8}
        hardware: {gpu: a100-sxm4-80gb, count: 4, gpus_per_node: 2}
        """,
    ),
}
COMMAND = """
accelerate launch --config_file accelerate.yaml train.py --model_name_or_path tiny --per_device_train_batch_size 2 \\
  --gradient_accumulation_steps 8 --max_seq_length 128
"""


@pytest.mark.parametrize("name", DEEPSPEED)
def test_a_deepspeed_json_answers_as_the_spec_by_hand(name: str, read: Read) -> None:
    given, count, by_hand = DEEPSPEED[name]
    answers_alike(read(given, hardware__count=count, **GIVEN), by_hand)


@pytest.mark.parametrize("name", ACCELERATE)
def test_an_accelerate_yaml_beside_its_command_answers_as_the_spec_by_hand(name: str, read: Read) -> None:
    given, by_hand = ACCELERATE[name]
    files = {"run.sh": COMMAND, "accelerate.yaml": given}
    found = read(files, hardware__gpu="a100-sxm4-80gb")
    answers_alike(found, by_hand)
    assert read(files, only=("run.sh",), hardware__gpu="a100-sxm4-80gb").spec == found.spec  # it finds what it names


def test_an_accelerate_yaml_alone_needs_a_model(read: Read) -> None:
    with pytest.raises(RigplanError, match="no file names the model; add --model NAME"):
        read(ACCELERATE["fsdp"][0])
    found = read(ACCELERATE["fsdp"][0], model__name="pythia-14m")
    assert found.spec["training"]["sharding"] == "fsdp"


def test_auto_is_what_the_other_file_says(read: Read) -> None:
    files = {
        "ds.json": DEEPSPEED["auto"][0],
        "args.txt": "python train.py --model_name_or_path tiny --per_gpu_train_batch_size 3 --bf16 --max_grad_norm 0.5",
    }
    training = read(files).spec["training"]
    assert (training["micro_batch"], training["precision"], training["max_grad_norm"]) == (3, "bf16-mixed", 0.5)
    assert any("bf16.enabled comes from the training options" in words for words in read(files).assumed)


def test_files_that_differ_are_told(read: Read) -> None:
    files = {
        "accelerate.yaml": "{distributed_type: MULTI_GPU, mixed_precision: fp16, num_processes: 2}",
        "args.txt": "python train.py --model_name_or_path tiny --bf16",
    }
    found = read(files)
    assert found.spec["training"]["precision"] == "bf16-mixed"
    assert "training.precision bf16-mixed of args.txt, and not fp16-mixed of accelerate.yaml" in found.assumed


def test_offload_and_unknown_keys(read: Read) -> None:
    found = read(
        """
        {"train_micro_batch_size_per_gpu": 1, "my_key": 7, "zero_optimization": {"stage": 3, "new_knob": true,
         "offload_optimizer": {"device": "cpu", "pin_memory": true}, "offload_param": {"device": "nvme"}}}
        """,
        **GIVEN,
    )
    assert (found.spec["training"]["sharding"], found.spec["training"]["offload"]) == ("zero3", "all")
    assert found.not_understood == ["new_knob: True", "my_key: 7"]
    assert any("nvme" in words for words in found.assumed)


@pytest.mark.parametrize("word", ["'NO'", "NO"])
def test_no_distribution_is_one_process(word: str, read: Read) -> None:
    found = read(f"{{distributed_type: {word}, mixed_precision: bf16, num_processes: 8}}", **GIVEN)
    assert found.spec["hardware"]["count"] == 1
    assert "micro-batch: no file says one, so that it is searched" in found.assumed


def test_hybrid_and_tensor_parallel_meshes(read: Read) -> None:
    found = read(
        """
        distributed_type: FSDP
        fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}
        parallelism_config:
          parallelism_config_dp_replicate_size: 2
          parallelism_config_dp_shard_size: 4
          parallelism_config_tp_size: 2
          parallelism_config_cp_size: 1
        num_machines: 2
        num_processes: 16
        """,
        **GIVEN,
    )
    assert (found.spec["training"]["sharding"], found.spec["training"]["tensor_parallel"]) == ("hsdp", 2)
    assert found.spec["hardware"] == {"gpu": "a100-sxm4-80gb", "count": 16, "gpus_per_node": 8}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"zero_optimization": {"stage": 7}}', "found '7', wanted 0, 1, 2 or 3"),
        ('{"zero_optimization": {"stage": 2}', "line 1 is not JSON"),
        ("{distributed_type: FSDP, fsdp_config: {fsdp_sharding_strategy: FULL}}", "wanted FULL_SHARD, SHARD_GRAD_OP"),
        ("{distributed_type: DEEPSPEED, num_processes: four}", "found 'four', wanted a whole number"),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: lost.json}",
            "lost.json, which is not there",
        ),
    ],
)
def test_a_mistake_is_one_line_with_the_fix(text: str, words: str, read: Read) -> None:
    with pytest.raises(RigplanError) as error:
        read(text, **GIVEN)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
