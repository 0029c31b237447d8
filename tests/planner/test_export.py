"""Each export is read by the library that it is for, and what it cannot say is told."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
import types
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from catalog.errors import RigplanError
from planner.answer import HardwareUsed, Plan
from planner.dialects.document import Document
from planner.dialects.imported import imported
from planner.dialects.option import Option, Written
from planner.dialects.table import DIALECTS
from planner.spec import Spec
from tests.planner.answers import estimate

SHARDINGS = ("none", "fsdp", "fsdp-grad-op", "zero1", "zero2", "zero3")


def option(
    model: dict[str, Any] | None = None, *, count: int = 8, per_node: int = 4, days: float | None = 40.0, **knobs: Any
) -> Option:
    """An option with given knobs: micro-batch 4 x accumulation 2 on two nodes of four GPUs."""
    spec = Spec.load(
        {
            "model": model or {"name": "llama-3.1-8b"},
            "data": {"sequence_length": 2048, "total": "143000 steps"},
            "hardware": {"gpu": "a100-sxm4-80gb", "count": count},
        }
    )
    whose = {"zero1": "deepspeed"} if knobs.get("sharding") == "zero1" else {}
    knobs = {"micro_batch": 4, "accumulation": 2, "global_batch": 8 * count} | whose | knobs
    answer = estimate("a100-sxm4-80gb", count, days, **knobs)
    hardware = HardwareUsed(gpu="a100-sxm4-80gb", count=count, gpus_per_node=per_node)
    return Option(spec, answer.model_copy(update={"hardware": hardware}), 1)


def written(dialect: str, one: Option) -> Written:
    return DIALECTS[dialect].writer(one)


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """TrainingArguments asks for a GPU before it takes bf16 or tf32."""
    from transformers import training_args

    for name in ("is_torch_bf16_gpu_available", "is_torch_tf32_available"):
        monkeypatch.setattr(training_args, name, lambda: True)
    monkeypatch.setattr(training_args, "enable_tf32", lambda _: None)


def training_arguments(path: Path) -> Any:
    """The file as transformers reads it."""
    from transformers import HfArgumentParser, TrainingArguments

    return HfArgumentParser(TrainingArguments).parse_yaml_file(path)[0]  # type: ignore[arg-type]


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("sharding", ["none", "fsdp", "fsdp-grad-op"])
def test_transformers_reads_training_arguments(sharding: str, tmp_path: Path) -> None:
    knobs = {"optimizer_implementation": "fused", "max_grad_norm": 0.5, "loss": "fused-linear"}
    one = option(sharding=sharding, checkpointing="full", **knobs)
    path = tmp_path / "args.yaml"
    path.write_text(written("training-arguments", one).text)
    found = training_arguments(path)
    assert found.use_liger_kernel
    assert found.per_device_train_batch_size * found.gradient_accumulation_steps * 8 == one.global_batch == 64
    assert (found.bf16, found.fp16, found.max_steps, found.max_grad_norm) == (True, False, 143_000, 0.5)
    assert found.optim.value == "adamw_torch_fused"
    if sharding == "none":
        assert found.gradient_checkpointing
        assert not found.fsdp
    else:
        assert found.fsdp_plugin_args["fsdp_version"] == 2
        assert found.fsdp_plugin_args["reshard_after_forward"] is (sharding == "fsdp")
        assert found.fsdp_plugin_args["activation_checkpointing"] is True


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        ({"precision": "fp32"}, {"bf16": False, "fp16": False, "tf32": None}),
        ({"precision": "tf32"}, {"bf16": False, "tf32": True}),
        ({"precision": "fp16-mixed"}, {"bf16": False, "fp16": True}),
        ({"max_grad_norm": None}, {"max_grad_norm": 0.0}),
        ({"optimizer": "adafactor"}, {"optim": "adafactor"}),
        ({"optimizer": "adamw-8bit"}, {"optim": "adamw_bnb_8bit"}),
        ({"optimizer": "lion"}, {"optim": "lion_32bit"}),
        ({"optimizer": "adam"}, {"optim": "adamw_torch", "weight_decay": 0.0}),
        ({"days": None}, {"max_steps": -1}),
    ],
)
def test_a_knob_becomes_its_training_argument(knobs: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text(written("training-arguments", option(**knobs)).text)
    found = training_arguments(path)
    assert {name: getattr(getattr(found, name), "value", getattr(found, name)) for name in expected} == expected


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("dialect", ["torchrun", "sbatch"])
def test_torchrun_and_transformers_read_the_command(dialect: str, tmp_path: Path) -> None:
    from torch.distributed.run import get_args_parser
    from transformers import HfArgumentParser, TrainingArguments

    text = written(dialect, option(checkpointing="full", allocator="expandable")).text
    path = tmp_path / "run.sh"
    path.write_text(text)
    assert subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False).stderr == ""
    assert "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" in text
    words = shlex.split(text[text.index("torchrun --nnodes") :].replace("\\\n", " "))
    launch = get_args_parser().parse_args(words[1:])
    assert (launch.nnodes, launch.nproc_per_node, launch.training_script) == ("2", "4", "train.py")
    parser = HfArgumentParser(TrainingArguments)  # type: ignore[arg-type]
    found = parser.parse_args_into_dataclasses(launch.training_script_args)[0]
    assert found.per_device_train_batch_size * found.gradient_accumulation_steps * 2 * 4 == 64
    assert found.gradient_checkpointing
    assert found.optim.value == "adamw_torch"


def test_slurm_gets_the_nodes_the_gpus_and_the_time() -> None:
    text = written("sbatch", option(days=1.5)).text
    header = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    # 1.5 days with the range of the test's estimate: 1.35 x 1.5 = 2.025 days, and an hour
    assert header == ["job-name=rigplan", "nodes=2", "ntasks-per-node=1", "gres=gpu:4", "time=2-01:36:00"]
    assert text.startswith("#!/bin/bash\n#SBATCH")  # Slurm stops reading its lines at the first command


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_accelerate_reads_its_yaml(sharding: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file

    path = tmp_path / "accelerate.yaml"
    path.write_text(written("accelerate", option(sharding=sharding, checkpointing="full")).text)
    found = load_config_from_file(str(path))
    kind = {"none": "MULTI_GPU", "fsdp": "FSDP", "fsdp-grad-op": "FSDP"}.get(sharding, "DEEPSPEED")
    assert (found.distributed_type.value, found.num_processes, found.num_machines) == (kind, 8, 2)
    assert found.mixed_precision == "bf16"
    if kind == "FSDP":
        assert found.fsdp_config["fsdp_reshard_after_forward"] is (sharding == "fsdp")
        assert found.fsdp_config["fsdp_activation_checkpointing"] is True
    if kind == "DEEPSPEED":
        assert found.deepspeed_config["zero_stage"] == int(sharding[-1])
        assert found.deepspeed_config["gradient_accumulation_steps"] == 2


@pytest.mark.parametrize(
    ("precision", "word"), [("fp32", "no"), ("bf16-mixed", "bf16"), ("fp16-mixed", "fp16"), ("fp8-mixed", "fp8")]
)
def test_accelerate_reads_the_precision_and_it_reads_back(precision: str, word: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file

    path = tmp_path / "accelerate.yaml"
    path.write_text(written("accelerate", option(precision=precision)).text)
    assert load_config_from_file(str(path)).mixed_precision == word
    found = imported([Document.load(str(path))], given=GIVEN)
    assert found.spec["training"]["precision"] == precision
    assert found.not_understood == []


def test_accelerate_is_told_of_a_hybrid_mesh(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.parallelism_config import ParallelismConfig

    path = tmp_path / "accelerate.yaml"
    path.write_text(written("accelerate", option(sharding="hsdp")).text)
    given = load_config_from_file(str(path)).parallelism_config
    sizes = {name.removeprefix("parallelism_config_"): size for name, size in given.items()}
    assert ParallelismConfig(**sizes).total_size == 8
    assert (sizes["dp_replicate_size"], sizes["dp_shard_size"]) == (2, 4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3"])
def test_deepspeed_reads_its_json(sharding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime import config

    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(config.dist, "get_world_size", lambda: 8)
    path = tmp_path / "ds.json"
    path.write_text(written("deepspeed", option(sharding=sharding, precision="fp16-mixed", offload="none")).text)
    found = config.DeepSpeedConfig(str(path))
    assert found.train_batch_size == 64
    assert found.train_micro_batch_size_per_gpu * found.gradient_accumulation_steps * 8 == 64
    assert int(found.zero_config.stage) == (0 if sharding == "none" else int(sharding[-1]))
    assert (found.float16_config.enabled, found.bfloat16_config.enabled) == (True, False)
    assert (found.optimizer_name, found.gradient_clipping) == ("adamw", 1.0)


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16", "fp16-mixed", "fp8-mixed"])
def test_transformers_reads_the_deepspeed_part_inside_training_arguments(precision: str, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    path = tmp_path / "args.yaml"
    path.write_text(written("training-arguments", option(sharding="zero3", offload="all", precision=precision)).text)
    found = training_arguments(path)
    assert found.hf_deepspeed_config.is_zero3()
    assert found.hf_deepspeed_config.is_offload()
    # in one process instead of eight, the global batch is the one thing that cannot agree
    assert {line.split("=")[0].strip("- ") for line in found.hf_deepspeed_config.mismatches} == {"ds train_batch_size"}


def torchtitan_configs(file: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One file of torchtitan's configs, by itself: the package as a whole wants a GPU's libraries."""
    place = importlib.util.find_spec("torchtitan")
    folder = Path(next(iter(place.submodule_search_locations or []))) if place else Path("nowhere")
    if not (folder / "config" / f"{file}.py").is_file():
        pytest.skip(f"needs a torchtitan with config/{file}.py")
    for name, path in (("torchtitan", folder), ("torchtitan.config", folder / "config")):
        package = types.ModuleType(name)
        package.__path__ = [str(path)]
        monkeypatch.setitem(sys.modules, name, package)
    return importlib.import_module(f"torchtitan.config.{file}")


@pytest.mark.parametrize(
    "knobs",
    [
        {"sharding": "fsdp"},
        {"sharding": "hsdp", "checkpointing": "selective"},
        {"precision": "bf16"},
        {"precision": "fp8-mixed"},
    ],
)
def test_torchtitan_knows_every_key_of_its_toml(knobs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    job_config = torchtitan_configs("job_config", monkeypatch).JobConfig()  # up to 0.2
    for section, keys in tomllib.loads(written("torchtitan", option(**knobs)).text).items():
        default = getattr(job_config, section)
        assert is_dataclass(default)
        types = {item.name: item.type for item in fields(default)}
        for key, value in keys.items():
            allowed = [choice for choice in get_args(types[key]) if isinstance(choice, str)]
            assert value in allowed if allowed else isinstance(value, type(getattr(default, key)))


def test_torchtitan_knows_every_option_that_replaces_its_toml(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = torchtitan_configs("configs", monkeypatch)  # from 0.3 on
    sections = {"training": "TrainingConfig", "parallelism": "ParallelismConfig", "compile": "CompileConfig"}
    text = written("torchtitan", option(sharding="hsdp", compile=True)).text
    flags = re.findall(r"--(training|parallelism|compile)\.(\w+)", text)
    assert ("training", "local_batch_size") in flags
    for section, name in flags:
        assert name in {item.name for item in fields(getattr(configs, sections[section]))}


def test_torchtitan_spreads_over_all_ranks() -> None:
    for sharding, replicate, shard in (("none", 8, 1), ("fsdp", 1, 8), ("hsdp", 2, 4)):
        found = tomllib.loads(written("torchtitan", option(sharding=sharding)).text)
        degrees = found["parallelism"]
        assert degrees["data_parallel_replicate_degree"] == replicate
        assert degrees["data_parallel_shard_degree"] == shard
        assert found["training"]["local_batch_size"] * 2 * replicate * shard == found["training"]["global_batch_size"]
        assert found["model"] == {"name": "llama3", "flavor": "8B"}


LORA = {"r": 8, "alpha": 16, "target_modules": ["q_proj", "v_proj"], "quantize": "nf4"}


@pytest.mark.parametrize(
    ("dialect", "knobs", "words"),
    [
        ("training-arguments", {"sharding": "hsdp"}, "--to accelerate"),
        ("training-arguments", {"optimizer": "muon"}, "optimizer muon (foreach) has no name"),
        ("training-arguments", {"checkpointing": "selective"}, "checkpointing selective"),
        ("training-arguments", {"tensor_parallel": 2}, "tensor_parallel 2"),
        ("training-arguments", {"precision": "fp8-mixed"}, "mixed_precision fp8, see --to accelerate"),
        ("deepspeed", {"precision": "fp8-mixed"}, "convert_to_float8_training"),
        ("training-arguments", {"precision": "bf16"}, "dtype=torch.bfloat16"),
        ("training-arguments", {"attention": "flash_attention_2"}, "attn_implementation='flash_attention_2'"),
        ("training-arguments", {"allocator": "expandable"}, "expandable_segments:True"),
        ("training-arguments", {"model": {"name": "llama-3.1-8b", "lora": LORA}}, "LoRA by peft: r=8, lora_alpha=16"),
        ("training-arguments", {}, "samples are 2048 tokens long"),
        ("accelerate", {}, "batch size 4 a GPU, 2 accumulation steps"),
        ("accelerate", {"precision": "tf32"}, "allow_tf32"),
        ("accelerate", {"checkpointing": "full"}, "checkpointing full"),
        ("deepspeed", {"compile": True}, "engine.compile()"),
        ("deepspeed", {"optimizer": "adafactor"}, "optimizer adafactor: DeepSpeed has none"),
        ("deepspeed", {}, "the learning rate"),
        ("torchtitan", {"model": {"name": "pythia-1b"}}, "none of torchtitan's own (EleutherAI/pythia-1b)"),
        ("torchtitan", {"optimizer": "lion"}, "lion is for a custom one"),
        ("torchtitan", {"max_grad_norm": None}, "no clipping"),
        ("sbatch", {}, "add your cluster's name for them to --gres"),
    ],
)
def test_what_a_dialect_cannot_say_is_told(dialect: str, knobs: dict[str, Any], words: str) -> None:
    found = written(dialect, option(**knobs))
    assert any(words in notice for notice in found.notices)
    if dialect != "deepspeed":  # JSON holds no comments: the command prints them beside it
        assert words in "\n".join(line for line in found.text.splitlines() if line.startswith("#"))


@pytest.mark.parametrize(
    ("dialect", "knobs", "words"),
    [
        ("deepspeed", {"sharding": "fsdp"}, "write sharding: zero3"),
        ("torchtitan", {"sharding": "zero2"}, "write sharding: fsdp"),
        ("torchtitan", {"precision": "fp16-mixed"}, "write precision: bf16-mixed"),
    ],
)
def test_what_a_library_does_not_do_is_refused(dialect: str, knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(RigplanError, match=words):
        written(dialect, option(**knobs))


def test_a_rank_that_is_not_there_is_refused() -> None:
    one = option()
    with pytest.raises(RigplanError, match="found 3, wanted a rank from 1 to 1"):
        Option.of(one.spec, Plan(ranked=[one.estimate]), 3)


GIVEN = {"model.name": "llama-3.1-8b", "hardware.gpu": "a100-sxm4-80gb"}
SAID = (
    "precision",
    "optimizer",
    "micro_batch",
    "accumulation",
    "checkpointing",
    "sharding",
    "max_grad_norm",
    "offload",
)


@pytest.mark.parametrize("dialect", ["training-arguments", "torchrun", "sbatch", "deepspeed"])
@pytest.mark.parametrize(
    "knobs",
    [
        {"sharding": "none", "precision": "fp16-mixed", "max_grad_norm": None},
        {"sharding": "fsdp", "checkpointing": "full"},
        {"sharding": "fsdp-grad-op", "precision": "fp32", "optimizer": "adafactor"},
        {"sharding": "zero2", "optimizer": "lion"},
        {"sharding": "zero3", "offload": "all"},
    ],
)
def test_what_is_written_reads_back_as_the_same_strategy(dialect: str, knobs: dict[str, Any], tmp_path: Path) -> None:
    if dialect == "deepspeed" and knobs["sharding"].startswith("fsdp"):
        return  # refused, see above
    one = option(**knobs)
    path = tmp_path / "written"
    path.write_text(written(dialect, one).text)
    found = imported(
        [Document.load(str(path))], given=GIVEN | ({"hardware.count": 8} if dialect == "deepspeed" else {})
    )
    strategy = Spec.load(yaml.safe_load(found.text())).training
    assert found.not_understood == []
    for name in SAID:
        assert getattr(strategy, name) == (getattr(one.strategy, name),), name
    if dialect in ("torchrun", "sbatch"):
        assert found.spec["hardware"] == {"gpu": "a100-sxm4-80gb", "count": 8, "gpus_per_node": 4}
        assert found.spec["data"]["total"] == "143000 steps"


@pytest.mark.parametrize("sharding", [*SHARDINGS, "hsdp"])
def test_an_accelerate_yaml_reads_back(sharding: str, tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(written("accelerate", option(sharding=sharding)).text)
    found = imported([Document.load(str(path))], given=GIVEN)
    assert found.spec["training"]["sharding"] == sharding
    assert found.spec["training"]["precision"] == "bf16-mixed"
    assert found.spec["hardware"] == {"gpu": "a100-sxm4-80gb", "count": 8, "gpus_per_node": 4}
    assert found.not_understood == []


def test_a_json_is_json() -> None:
    assert json.loads(written("deepspeed", option(sharding="zero2")).text)["zero_optimization"]["stage"] == 2


def test_torchs_own_zero1_is_ddp_with_another_optimizer_and_nothing_of_deepspeeds() -> None:
    one = option(sharding="zero1", zero1="torch")
    with pytest.raises(RigplanError, match="write zero1: deepspeed"):
        written("deepspeed", one)
    found = written("accelerate", one)
    assert "zero_stage" not in found.text
    assert any("ZeroRedundancyOptimizer" in notice for notice in found.notices)
