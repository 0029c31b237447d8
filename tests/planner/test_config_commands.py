"""`rigplan import` and `rigplan export` as commands: pipes, JSON, files, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

import planner
from planner.cli import rigplan
from tests.planner.imports import write_tiny
from tests.planner.test_search import spec

Write = Callable[[object], Path]
LINE = "torchrun --nproc_per_node 2 t.py --model_name_or_path tiny --bf16 --model_max_length 64 --foo 3\n"


def run(*arguments: object, **options: str) -> Result:
    return CliRunner().invoke(rigplan, [str(argument) for argument in arguments], **options)  # type: ignore[arg-type]


@pytest.fixture
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    (tmp_path / "train_args.txt").write_text(LINE)


@pytest.mark.usefixtures("_here")
def test_an_import_pipes_into_fits(root: Path) -> None:
    asked = yaml.safe_load(run("import", "train_args.txt").stdout)
    planner.fits(asked)  # so that the two processes have no trace to make
    code = f"{sys.executable} -c 'from planner.cli import main; main()'"
    environment = {**os.environ, "PYTHONPATH": str(root)}
    line = f"{code} import train_args.txt | {code} fits - --json"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "fits"
    assert (answer["hardware"]["count"], answer["strategy"]["global_batch"]) == (2, 16)


@pytest.mark.usefixtures("_here")
def test_an_import_reads_standard_input_and_tells_what_it_took() -> None:
    done = run("import", "-", "--gpu", "rtx 3090", "--count", 4, "--samples", 1000, input=LINE + "\n")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("# imported from standard input\n# assumed:\n")
    assert "# not understood, and left out:\n#   - --foo 3\n" in done.stdout
    assert yaml.safe_load(done.stdout)["hardware"] == {"gpu": "rtx-3090", "count": 4}


@pytest.mark.usefixtures("_here")
def test_an_import_as_json_has_the_same() -> None:
    found = json.loads(run("import", "train_args.txt", "--json").stdout)
    assert set(found) == {"spec", "assumed", "not_understood", "without_bearing"}
    assert found["not_understood"] == ["--foo 3"]
    assert found["spec"] == yaml.safe_load(run("import", "train_args.txt").stdout)


@pytest.mark.usefixtures("_here")
def test_several_files_are_one_spec() -> None:
    Path("ds.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}')
    found = yaml.safe_load(run("import", "train_args.txt", "ds.json").stdout)
    assert found["training"]["sharding"] == "zero2"
    assert found["training"]["precision"] == "bf16-mixed"


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lost.txt"], "lost.txt: no such file"),
        (["train_args.txt", "--gpu", "h1000"], "Unknown accelerator 'h1000'"),
        (["train_args.txt", "--count", "0"], "not in the range x>=1"),
        (["train_args.txt", "--dialect", "axolotl"], "no file names the model; add --model"),
        (["train_args.txt", "--dialect", "megatron"], "is not one of"),
    ],
)
def test_a_mistake_leaves_with_2_and_one_line(arguments: list[str], words: str, root: Path) -> None:
    command = [sys.executable, "-c", "from planner.cli import main; main()", "import", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(root)}, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("rigplan: error: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_spec_is_not_imported(spec_file: Write) -> None:
    done = run("import", spec_file(spec()))
    assert done.exit_code == 2
    assert "is a spec already; give it to rigplan fits" in done.stderr


@pytest.mark.usefixtures("_here")
def test_an_import_loads_neither_torch_nor_transformers(root: Path) -> None:
    code = (
        "import sys\nfrom planner.cli import rigplan\n"
        "rigplan(['import', 'train_args.txt'], standalone_mode=False)\n"
        "assert not {'torch', 'transformers', 'accelerate'} & set(sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assumed = done.stdout.partition("# assumed:\n")[2].partition("# not understood")[0]
    others = assumed.count("#   - ") - 1
    assert done.stderr.splitlines() == [
        f"rigplan: assumed the GPU (h100-sxm5-80gb), and {others} other things; "
        "comments at the top of the spec say all",
        "rigplan: not understood: --foo 3",
    ]
    assert yaml.safe_load(done.stdout)["training"]["micro_batch"] == 8


def test_an_option_of_a_plan_is_written(spec_file: Write, tmp_path: Path) -> None:
    path = spec_file(spec({"checkpointing": ["none", "full"]}))
    ranked = json.loads(run("plan", path, "--json").stdout)["ranked"]
    for rank, answer in enumerate(ranked, 1):
        done = run("export", path, "--rank", rank, "--to", "training-arguments")
        assert done.exit_code == 0, done.output
        found = yaml.safe_load(done.stdout)
        assert found.get("gradient_checkpointing", False) == (answer["strategy"]["checkpointing"] == "full")
        assert found["max_steps"] == 1000
        assert f"option {rank}," in done.stdout.splitlines()[0]
    file = tmp_path / "ds.json"
    done = run("export", path, "--to", "deepspeed", "-o", file)
    assert done.stdout == f"{file}: deepspeed, option 1 of 2\n"
    assert json.loads(file.read_text())["train_batch_size"] == 4
    assert "rigplan: micro-batch 4 x accumulation 1 x 1 data-parallel ranks = global batch 4\n" in done.stderr
    told = json.loads(run("export", path, "--to", "deepspeed", "--json").stdout)
    assert told["text"] == file.read_text()
    assert all(f"rigplan: {notice}\n" in done.stderr for notice in told["notices"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rank", "3", "--to", "accelerate"], "--rank: found 3, wanted a rank from 1 to 1"),
        (["--to", "accelerate", "-o", "lost/folder/file"], "cannot be written"),
    ],
)
def test_a_wrong_export_leaves_with_2(arguments: list[str], words: str, spec_file: Write) -> None:
    done = run("export", spec_file(spec()), *arguments)
    assert done.exit_code == 2
    assert words in done.stderr


def test_nothing_to_export_leaves_with_1_and_says_why(spec_file: Write) -> None:
    hardware = {"gpu": "rtx-3090", "memory_limit": "64 MiB"}
    done = run("export", spec_file(spec({"micro_batch": 64}, hardware)), "--to", "accelerate")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "rigplan: nothing to export: does not fit" in done.stderr
