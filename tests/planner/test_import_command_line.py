"""A training command line as people paste it gives the spec that one would write by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from catalog.errors import RigplanError
from planner.dialects.imported import Imported
from tests.planner.imports import answers_alike, read

Read = Callable[..., Imported]
__all__ = ["read"]

EXAMPLES = {
    # a full fine-tune under FSDP, after a card of instructions
    "fsdp": (
        r"""
        $ torchrun --nproc_per_node=4 --master_port=29511 finetune.py \
            --model_name_or_path tiny \
            --data_path ./instructions.json \
            --bf16 True \
            --output_dir out/run1 \
            --per_device_train_batch_size 2 \
            --per_device_eval_batch_size 2 \
            --gradient_accumulation_steps 8 \
            --evaluation_strategy "no" --save_strategy "steps" --save_steps 2000 \
            --learning_rate 2e-5 --weight_decay 0. --warmup_ratio 0.03 \
            --lr_scheduler_type "cosine" --logging_steps 1 \
            --fsdp "full_shard auto_wrap" \
            --fsdp_transformer_layer_cls_to_wrap 'LlamaDecoderLayer' \
            --tf32 True --model_max_length 128 --gradient_checkpointing True --max_steps 1000
        """,
        """
        model: {config: tiny/config.json}
        data: {sequence_length: 128, total: 1000 steps}
        training: {precision: bf16-mixed, optimizer: adamw, optimizer_implementation: fused, micro_batch: 2,
                   accumulation: 8, checkpointing: full, sharding: fsdp}
        hardware: {gpu: a100-sxm4-80gb, count: 4}
        """,
    ),
    # transformers' own example of language modelling, with all defaults of the Trainer
    "run_clm": (
        """
        export OUT=/scratch/clm
        CUDA_VISIBLE_DEVICES=0 python run_clm.py --model_name_or_path=tiny --dataset_name wikitext
            --dataset_config_name wikitext-2-raw-v1 --do_train --do_eval --output_dir $OUT --block_size 128
        """.replace("\n            --dataset_config", " \\\n --dataset_config"),
        """
        model: {config: tiny/config.json, task: causal-lm}
        data: {sequence_length: 128}
        training: {precision: fp32, optimizer: adamw, optimizer_implementation: fused, micro_batch: 8, accumulation: 1}
        hardware: {gpu: a100-sxm4-80gb}
        """,
    ),
    # a DeepSpeed launcher with a ZeRO file that lies beside the command
    "deepspeed": (
        {
            "train.sh": """
#!/bin/bash
MODEL=tiny
BATCH=2
# the batch of each GPU
deepspeed --include localhost:0,1,2,3 --master_port 61000 src/train.py --deepspeed configs/zero2.json \\
  --model_name_or_path $MODEL --per_device_train_batch_size ${BATCH} --gradient_accumulation_steps 8 \\
  --fp16 --optim adamw_torch --max_grad_norm 0 --max_seq_length 128 --lr_scheduler_type cosine
""",
            "zero2.json": """
{"zero_optimization": {"stage": 2, "overlap_comm": true, "reduce_bucket_size": "auto"},
 "fp16": {"enabled": "auto", "loss_scale": 0}, "train_batch_size": "auto",
 "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto"}
""",
        },
        """
        model: {config: tiny/config.json}
        data: {sequence_length: 128}
        training: {precision: fp16-mixed, optimizer: adamw, optimizer_implementation: foreach, micro_batch: 2,
                   accumulation: 8, sharding: zero2, max_grad_norm: null}
        hardware: {gpu: a100-sxm4-80gb, count: 4}
        """,
    ),
    # TRL's script for supervised fine-tuning, with its own defaults
    "trl": (
        """
        trl sft --model_name_or_path tiny --dataset_name some/chat --dtype bfloat16 --per_device_train_batch_size 2
            --gradient_accumulation_steps 8 --max_length 128 --optim adamw_torch
        """.replace("size 2\n", "size 2 \\\n"),
        """
        model: {config: tiny/config.json, task: causal-lm}
        data: {sequence_length: 128}
        training: {precision: bf16, optimizer: adamw, micro_batch: 2, accumulation: 8, checkpointing: full}
        hardware: {gpu: a100-sxm4-80gb}
        """,
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_command_line_answers_as_the_spec_by_hand(name: str, read: Read) -> None:
    given, by_hand = EXAMPLES[name]
    answers_alike(read(given, hardware__gpu="a100-sxm4-80gb"), by_hand)


def test_what_is_not_understood_is_listed_and_what_bears_nothing_too(read: Read) -> None:
    found = read("python train.py --model_name_or_path tiny --foo 3 --bar --seed 1 --baz a b")
    assert found.not_understood == ["--foo 3", "--bar", "--baz ['a', 'b']"]
    assert found.without_bearing == ["seed"]
    assert "# not understood, and left out:\n#   - --foo 3\n" in found.text()


def test_the_defaults_that_were_taken_are_told(read: Read) -> None:
    found = read("python train.py --model_name_or_path tiny")
    assert "micro_batch 8: the default of TrainingArguments" in found.assumed
    assert "gpu h100-sxm5-80gb: no file says which; --gpu NAME says another" in found.assumed
    assert "one GPU: no file says how many; --count N says more" in found.assumed


@pytest.mark.parametrize(
    ("launch", "count", "per_node"),
    [
        ("torchrun --nnodes 2 --nproc-per-node 8 train.py", 16, 8),
        ("python -m torch.distributed.launch --nproc_per_node=4 train.py", 4, None),
        ("python -m torch.distributed.run --nnodes=1:4 --nproc_per_node=2 -m pkg.train", 8, 2),
        ("accelerate launch --num_processes 8 --num_machines 2 --mixed_precision bf16 train.py", 8, 4),
        ("accelerate launch --multi_gpu --num_processes=4 train.py", 4, None),
        ("deepspeed --num_gpus 8 --num_nodes 4 train.py", 32, 8),
        ("deepspeed -i host1:0,1@host2:0,1 train.py", 4, 2),
        ("CUDA_VISIBLE_DEVICES=0,1 python -u train.py", 2, None),
        ("mpirun -np 4 python train.py", 4, None),
        ("srun -N 2 --gpus-per-node=4 --ntasks-per-node 4 python train.py", 8, 4),
        ("nohup torchrun --nproc_per_node 2 train.py", 2, None),
        ("NNODES=2 NPROC_PER_NODE=4 FORCE_TORCHRUN=1 python train.py", 8, 4),
    ],
)
def test_the_launcher_says_how_many_gpus(launch: str, count: int, per_node: int | None, read: Read) -> None:
    hardware = read(f"{launch} --model_name_or_path tiny --bf16").spec["hardware"]
    assert (hardware["count"], hardware.get("gpus_per_node")) == (count, per_node)


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("--optim adamw_torch", "optimizer_implementation", "foreach"),
        ("--optim adamw_torch_fused", "optimizer_implementation", "fused"),
        ("--optim adamw_bnb_8bit", "optimizer", "adamw-8bit"),
        ("--optim paged_adamw_8bit", "optimizer", "adamw-8bit"),
        ("--optim lion_32bit", "optimizer", "lion"),
        ("--adafactor", "optimizer", "adafactor"),
        ("--tf32 True", "precision", "tf32"),
        ("--bf16 --torch_dtype bfloat16", "precision", "bf16"),
        ("--fsdp 'shard_grad_op auto_wrap'", "sharding", "fsdp-grad-op"),
        ("--fsdp 'hybrid_shard auto_wrap'", "sharding", "hsdp"),
        ("""--fsdp --fsdp_config '{"activation_checkpointing": true}'""", "checkpointing", "full"),
        ("--torch_compile", "compile", True),
        ("--deepspeed ds_z3_offload_config.json", "sharding", "zero3"),
        ("--deepspeed ds_z3_offload_config.json", "offload", "all"),
    ],
)
def test_an_option_becomes_its_field(options: str, field: str, value: object, read: Read) -> None:
    assert read(f"python train.py --model_name_or_path tiny {options}").spec["training"][field] == value


def test_ligers_loss_is_that_of_causal_language_models(read: Read) -> None:
    said = read("python run_clm.py --model_name_or_path tiny --use_liger_kernel True")
    assert said.spec["training"]["loss"] == "fused-linear"
    other = read("python run_mlm.py --model_name_or_path tiny --use_liger_kernel True")
    assert "loss" not in other.spec["training"]
    assert any("logits are counted in full" in words for words in other.assumed)


def test_a_command_may_be_built_of_variables_and_run_by_eval_or_bash(read: Read) -> None:
    built = (
        'NODES=2\nARGS="--nnodes $NODES --nproc_per_node ${PER_NODE:-4}"\n'
        'cmd="torchrun $ARGS train.py --model_name_or_path tiny --bf16"\necho "$cmd"\neval "$cmd"\n'
    )
    assert read(built).spec["hardware"]["count"] == 8
    quoted = (
        "srun --nodes=2 --gres=gpu:2 bash -c 'torchrun --nproc_per_node 2 --nnodes 2 t.py --model_name_or_path tiny'"
    )
    assert read(quoted).spec["hardware"]["count"] == 4


@pytest.mark.parametrize(
    "text",
    [
        "--model_name_or_path tiny\n--bf16 True\n--per_device_train_batch_size 3\n",
        "python train.py\n  --model_name_or_path tiny\n  --bf16 True\n  # the batch\n  --per_device_train_batch_size=3",
        "!python train.py --model-name-or-path tiny --bf16 True --per-device-train-batch-size 3",
        "\ufeff(env) $ python train.py --model_name_or_path tiny --bf16 True --per_device_train_batch_size 3\r\n",
    ],
)
def test_options_may_be_pasted_in_many_ways(text: str, read: Read) -> None:
    training = read(text).spec["training"]
    assert (training["micro_batch"], training["precision"]) == (3, "bf16-mixed")


def test_what_stands_around_the_command_is_listed(read: Read) -> None:
    found = read("singularity exec --nv image.sif python train.py odd --model_name_or_path tiny --bf16")
    assert found.not_understood == ["before the command: singularity exec --nv image.sif", "odd"]


def test_files_that_the_command_names_are_read_beside_it(read: Read) -> None:
    files = {
        "run.sh": "python train.py --model_name_or_path tiny --bf16 --fsdp 'full_shard auto_wrap' --fsdp_config f.json",
        "f.json": '{"fsdp_reshard_after_forward": false, "activation_checkpointing": true, "odd": 1}',
    }
    found = read(files, only=("run.sh",))
    assert found.spec["training"]["checkpointing"] == "full"
    assert found.not_understood == ["odd: 1"]
    trl = {"run.sh": "trl sft --config a.yaml", "a.yaml": "{model_name_or_path: tiny, per_device_train_batch_size: 3}"}
    assert read(trl, only=("run.sh",)).spec["training"]["micro_batch"] == 3


def test_options_of_llama_factory_are_known_in_any_command(read: Read) -> None:
    found = read("accelerate launch src/train.py --stage sft --finetuning_type full --model_name_or_path tiny --bf16")
    assert found.spec["training"]["checkpointing"] == "full"
    assert found.spec["data"]["sequence_length"] == 2048


def test_lora_options_become_an_adapter(read: Read) -> None:
    found = read(
        "trl sft --model_name_or_path tiny --use_peft --load_in_4bit --lora_r 32 --lora_target_modules q_proj o_proj"
    )
    assert found.spec["model"]["lora"] == {
        "r": 32, "alpha": 32, "target_modules": ["q_proj", "o_proj"], "dropout": 0.05, "quantize": "nf4",
    }  # fmt: skip


def test_an_epoch_needs_the_size_of_the_data(read: Read) -> None:
    line = "python train.py --model_name_or_path tiny --num_train_epochs 3"
    assert "total" not in read(line).spec.get("data", {})
    assert any("--samples N" in words for words in read(line).assumed)
    assert read(line, samples=52_000).spec["data"]["total"] == "3 epochs of 52000 samples"


def test_a_hub_id_and_a_lost_folder_become_the_preset(read: Read) -> None:
    assert read("python t.py --model_name_or_path EleutherAI/pythia-160m").spec["model"]["name"] == "pythia-160m"
    found = read("python t.py --model_name_or_path /models/pythia-160m/")
    assert found.spec["model"]["name"] == "pythia-160m"
    assert "model pythia-160m by the last part of /models/pythia-160m/" in found.assumed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python train.py --bf16", "no file names the model; add --model NAME"),
        ("python train.py --model_name_or_path ./lost/x/y --bf16", "neither a preset, a hub id nor a folder"),
        ("python train.py --model_name_or_path tiny --bf16 maybe", "found 'maybe', wanted true or false"),
        ("python train.py --model_name_or_path tiny --max_steps many", "found 'many', wanted a whole number"),
        ("python train.py --model_name_or_path tiny --bf16 --fp16", "found both bf16 and fp16, wanted one"),
        ("python train.py --model_name_or_path 'tiny --bf16", "check its quotes"),
        ("python train.py --model_name_or_path tiny --deepspeed ds.json", "rigplan import given.txt ds.json"),
        ("python train.py --model_name_or_path tiny --per_device_train_batch_size 0", "found 0, wanted a positive"),
        ("hello world", "is in no dialect that is known"),
    ],
)
def test_a_mistake_is_one_line_with_the_fix(text: str, words: str, read: Read) -> None:
    with pytest.raises(RigplanError) as error:
        read(text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
