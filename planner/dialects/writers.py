"""The exports that are built of TrainingArguments' options: a YAML, a torchrun command and a Slurm script."""

from __future__ import annotations

import json
import shlex
from datetime import timedelta
from typing import Any

import yaml

from planner.dialects.option import Option, Written, commented
from planner.dialects.trainer_options import trainer_options

SCRIPT = "train.py"
PORT = 29500  # torchrun's own


def training_arguments(option: Option) -> Written:
    """A YAML that HfArgumentParser(TrainingArguments).parse_yaml_file reads."""
    found, notices = trainer_options(option)
    head = [
        *option.head("TrainingArguments"),
        "read it with HfArgumentParser(TrainingArguments).parse_yaml_file(file), in one process a GPU",
        *notices,
    ]
    return Written(commented(head) + yaml.safe_dump(found, sort_keys=False), notices)


# Slurm kills a job at its time, and an estimate holds neither its start nor loading data nor saving.
AROUND_DAYS = 1 / 24


def torchrun(option: Option) -> Written:
    """A shell script with one torchrun command; its script takes TrainingArguments."""
    found, notices = trainer_options(option)
    text = "#!/bin/bash\n" + commented([*option.head("torchrun"), *notices, *_of_nodes(option)])
    return Written(text + _environment(option) + _command(option, found, "$MASTER_ADDR", "") + "\n", notices)


def sbatch(option: Option) -> Written:
    """A Slurm script: one task a node, which starts torchrun."""
    found, notices = trainer_options(option)
    notices = [f"the GPUs are meant to be {option.hardware.gpu}: add your cluster's name for them to --gres", *notices]
    header = {
        "job-name": "rigplan",
        "nodes": option.nodes,
        "ntasks-per-node": 1,
        "gres": f"gpu:{option.gpus_per_node}",
    }
    run = option.estimate.run
    if run is not None:
        header["time"] = _slurm_time(run.high_days + AROUND_DAYS)
        told = f"--time is the upper end of the estimate, {run.high_days:.2g} days, and an hour for starting and saving"
        notices = [told, *notices]
    lines = "".join(f"#SBATCH --{name}={value}\n" for name, value in header.items())
    first = 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\nexport MASTER_ADDR\n'
    text = "#!/bin/bash\n" + lines + commented([*option.head("Slurm script"), *notices]) + "set -e\n"
    return Written(
        text + first + _environment(option) + _command(option, found, "$MASTER_ADDR", "srun ") + "\n", notices
    )


def _of_nodes(option: Option) -> list[str]:
    return (
        [f"start it on each of the {option.nodes} nodes, with MASTER_ADDR set to the first"] if option.nodes > 1 else []
    )


def _environment(option: Option) -> str:
    if option.strategy.allocator != "expandable":
        return ""
    return "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"


def _command(option: Option, found: dict[str, Any], address: str, before: str) -> str:
    launch = ["torchrun", f"--nnodes={option.nodes}", f"--nproc_per_node={option.gpus_per_node}"]
    if option.nodes > 1:
        launch += ["--rdzv_backend=c10d", f'--rdzv_endpoint="{address}:{PORT}"', "--rdzv_id=rigplan"]
    else:
        launch.append("--standalone")
    options = [f"--{name} {_shell(value)}" for name, value in found.items()]
    return " \\\n  ".join([before + " ".join(launch), SCRIPT, *options])


def _shell(value: Any) -> str:
    return shlex.quote(json.dumps(value) if isinstance(value, dict) else str(value))


def _slurm_time(days: float) -> str:
    seconds = timedelta(days=days).total_seconds()
    minutes = max(1, -(-int(seconds) // 60))
    return f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00"


__all__ = ["sbatch", "torchrun", "training_arguments"]
