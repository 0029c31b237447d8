"""The defaults that an import takes are those of the real libraries, read from them."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.dialects import axolotl, llama_factory, trainer, training_arguments
from planner.dialects.command_line import Command
from planner.dialects.document import Document
from planner.dialects.optimizers import NAMES, WRITTEN
from planner.dialects.reading import Options, Reading


def training_arguments_defaults() -> dict[str, Any]:
    from transformers import TrainingArguments

    return {field.name: field.default for field in dataclasses.fields(TrainingArguments)}


def test_the_trainer_defaults_are_those_of_training_arguments() -> None:
    real = training_arguments_defaults()
    optimizer, implementation, _ = NAMES[str(real["optim"]).split(".")[-1].lower()]
    assert {
        "training.micro_batch": real["per_device_train_batch_size"],
        "training.accumulation": real["gradient_accumulation_steps"],
        "training.precision": "bf16-mixed" if real["bf16"] else "fp16-mixed" if real["fp16"] else "fp32",
        "training.optimizer": optimizer,
        "training.optimizer_implementation": implementation,
        "training.max_grad_norm": real["max_grad_norm"],
        "training.checkpointing": "full" if real["gradient_checkpointing"] else "none",
    } == trainer.DEFAULTS


def test_every_training_argument_is_known() -> None:
    given = dict.fromkeys(training_arguments_defaults(), "given")
    given |= {"per_device_train_batch_size": "1", "gradient_accumulation_steps": "1", "max_grad_norm": "1"}
    given |= {"max_steps": "1", "num_train_epochs": "1"}
    given |= dict.fromkeys(("bf16", "fp16"), "false")
    flags = ("tf32", "torch_compile", "gradient_checkpointing", "activation_checkpointing", "use_liger_kernel")
    given |= dict.fromkeys(flags, "true")
    reading = Reading("all")
    document = Document("all", "", Path())
    training_arguments.read_script(Options(given, "all"), reading, document, Command("python"))
    assert reading.not_understood == []


def test_every_name_of_an_optimizer_is_one_of_theirs() -> None:
    from transformers.training_args import OptimizerNames

    theirs = {name.value for name in OptimizerNames}
    assert set(WRITTEN.values()) <= theirs
    assert {"adamw_torch", "adamw_torch_fused", "adafactor", "adamw_bnb_8bit", "lion_32bit"} <= set(NAMES) & theirs


def assigned(package: str, file: str) -> Iterator[tuple[str, Any]]:
    """The names that the classes of a library's file give a literal default, without running the file."""
    place = importlib.util.find_spec(package)
    if place is None or not place.submodule_search_locations:
        pytest.skip(f"needs {package}")
    tree = ast.parse((Path(next(iter(place.submodule_search_locations))) / file).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            value = node.value
            if isinstance(value, ast.Call):
                value = next((word.value for word in value.keywords if word.arg == "default"), value)
            if isinstance(value, ast.Constant):
                yield node.target.id, value.value


def test_the_axolotl_defaults_are_those_of_its_schema() -> None:
    real = dict(assigned("axolotl", "utils/schemas/training.py")) | dict(assigned("axolotl", "utils/schemas/config.py"))
    optimizer, implementation, _ = NAMES[real["optimizer"]]
    expected = {
        "training.micro_batch": real["micro_batch_size"],
        "training.accumulation": real["gradient_accumulation_steps"],
        "training.optimizer": optimizer,
        "training.optimizer_implementation": implementation,
        "training.checkpointing": "full" if real["gradient_checkpointing"] else "none",
        "data.sequence_length": real["sequence_len"],
    }
    assert {place: axolotl.DEFAULTS[place] for place in expected} == expected


def test_the_llama_factory_defaults_are_those_of_its_arguments() -> None:
    data = dict(assigned("llamafactory", "hparams/data_args.py"))
    tuning = dict(assigned("llamafactory", "hparams/finetuning_args.py"))
    assert data["cutoff_len"] == llama_factory.CUTOFF_LEN
    assert tuning["lora_rank"] == llama_factory.LORA_RANK
    assert (tuning["lora_target"], tuning["finetuning_type"], tuning["pure_bf16"]) == ("all", "lora", False)


def test_the_trl_defaults_are_those_of_its_configs() -> None:
    base, model = dict(assigned("trl", "trainer/base_config.py")), dict(assigned("trl", "trainer/model_config.py"))
    sft = dict(assigned("trl", "trainer/sft_config.py"))
    assert base["gradient_checkpointing"] is True
    assert base["bf16"] is None  # which it sets to true unless fp16 is
    assert sft["max_length"] == training_arguments.SCRIPTS["sft"].length
    of_lora = (training_arguments.LORA_R, training_arguments.LORA_ALPHA, training_arguments.LORA_DROPOUT)
    assert (model["lora_r"], model["lora_alpha"], model["lora_dropout"]) == of_lora


def test_the_lora_defaults_of_axolotl_are_those_of_peft() -> None:
    peft = pytest.importorskip("peft")
    real = peft.LoraConfig()
    assert (real.r, real.lora_alpha) == (axolotl.LORA_R, axolotl.LORA_ALPHA)
