"""A Slurm script: the header says the GPUs, and the command inside it the rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from catalog.errors import RigplanError
from planner.dialects.imported import Imported
from tests.planner.imports import answers_alike, read

Read = Callable[..., Imported]
__all__ = ["read"]

EXAMPLES = {
    "torchrun on two nodes": (
        r"""#!/bin/bash
#SBATCH --job-name=llama
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100-sxm4-80gb:2
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00   # a day
#SBATCH -A myaccount
module load cuda
export MODEL=tiny
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE --rdzv_backend c10d \
    --rdzv_endpoint $MASTER_ADDR:29500 train.py --model_name_or_path $MODEL --bf16 True \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --model_max_length 128 \
    --fsdp "full_shard auto_wrap" --gradient_checkpointing True
""",
        """
        model: {config: tiny/config.json}
        data: {sequence_length: 128}
        training: {precision: bf16-mixed, optimizer: adamw, optimizer_implementation: fused, micro_batch: 2,
                   accumulation: 8, checkpointing: full, sharding: fsdp}
        hardware: {gpu: a100-sxm4-80gb, count: 4, gpus_per_node: 2}
        """,
    ),
    "one task a GPU": (
        """#!/bin/sh
#SBATCH -N 1
#SBATCH -n 4
#SBATCH --gpus-per-task=1
#SBATCH -C a100_80
srun python train.py --model_name_or_path tiny --per_device_train_batch_size 2 --gradient_accumulation_steps 8 \\
  --max_seq_length 128
""",
        """
        model: {config: tiny/config.json}
        data: {sequence_length: 128}
        training: {precision: fp32, optimizer: adamw, optimizer_implementation: fused, micro_batch: 2, accumulation: 8}
        hardware: {gpu: a100-sxm4-80gb, count: 4}
        """,
    ),
    "one GPU": (
        """#!/bin/bash
#SBATCH --gpus=A100-80GB:1
#SBATCH --mem=64G
source activate env
python train.py --model_name_or_path tiny --per_device_train_batch_size 2 --dtype bfloat16 --optim adamw_torch \\
  --gradient_checkpointing --gradient_accumulation_steps 8 --max_seq_length 128
""",
        """
        model: {config: tiny/config.json}
        data: {sequence_length: 128}
        training: {precision: bf16, optimizer: adamw, micro_batch: 2, accumulation: 8, checkpointing: full}
        hardware: {gpu: a100-sxm4-80gb}
        """,
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_slurm_script_answers_as_the_spec_by_hand(name: str, read: Read) -> None:
    given, by_hand = EXAMPLES[name]
    found = read(given)
    answers_alike(found, by_hand)
    assert any(words.startswith("gpu a100-sxm4-80gb for Slurm's") for words in found.assumed)


def test_a_header_alone_needs_a_model_and_gives_the_hardware(read: Read) -> None:
    header = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=h200:8\n#SBATCH --odd=1\n"
    with pytest.raises(RigplanError, match="add --model NAME"):
        read(header)
    found = read(header, model__name="pythia-14m", hardware__gpu="h200-sxm")
    assert found.spec["hardware"] == {"gpu": "h200-sxm", "count": 32, "gpus_per_node": 8}
    assert found.not_understood == ["--odd 1"]


def test_a_gpu_that_could_be_several_is_asked_for(read: Read) -> None:
    script = "#!/bin/bash\n#SBATCH --gres=gpu:a100:4\npython train.py --model_name_or_path tiny --bf16\n"
    with pytest.raises(RigplanError, match=r"could be a100-pcie-40gb.*Add --gpu NAME"):
        read(script)
    assert read(script, hardware__gpu="a100-sxm4-40gb").spec["hardware"] == {"gpu": "a100-sxm4-40gb", "count": 4}
