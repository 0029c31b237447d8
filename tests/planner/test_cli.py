"""The command line: exit codes, JSON, and what it loads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

import planner
from planner.cli import main, rigplan
from tests.planner.test_search import spec

Write = Callable[[object], Path]
LARGE = {"micro_batch": 64, "precision": "fp32"}  # as in test_ladder, so that one climb serves both
LIGHT_SECONDS = 1.5  # of processor time, which a busy machine does not change by much


def run(*arguments: object, **options: str) -> Result:
    return CliRunner().invoke(rigplan, [str(argument) for argument in arguments], catch_exceptions=False, **options)


def test_what_fits_leaves_with_0_and_json_is_the_python_answer(spec_file: Write) -> None:
    done = run("fits", spec_file(spec()), "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == planner.fits(spec()).model_dump(mode="json")


def test_what_does_not_fit_leaves_with_1_and_says_what_is_missing(spec_file: Write) -> None:
    done = run("fits", spec_file(spec(LARGE, {"gpu": "rtx-3090", "memory_limit": "256 MiB"})))
    assert done.exit_code == 1
    assert done.stdout.startswith("does-not-fit: ")
    assert "GiB missing" in done.stdout.splitlines()[0]
    assert "What makes it fit" in done.stdout


def test_the_ladder_can_be_asked_for_where_it_fits(spec_file: Write) -> None:
    text = run("fits", spec_file(spec(LARGE)), "--ladder").stdout
    assert "What would save memory" in text
    assert "checkpointing: full" in text


def test_a_plan_prints_its_table_and_leaves_with_0(spec_file: Write) -> None:
    done = run("plan", spec_file(spec({"checkpointing": ["none", "full"]})), "--objective", "time")
    assert done.exit_code == 0
    assert done.stdout.startswith("2 of 2 combinations work\nthe fastest: 1 x rtx-3090")


def test_nothing_within_the_budget_leaves_with_1_and_the_nearest_plan(spec_file: Write) -> None:
    done = run("plan", spec_file(spec({"checkpointing": ["none", "full"]}, budget={"days": 1e-6})))
    assert done.exit_code == 1
    assert "nearest to the budget: 1 x rtx-3090" in done.stdout


def test_an_estimate_over_its_budget_leaves_with_1(spec_file: Write) -> None:
    done = run("estimate", spec_file(spec(budget={"usd": 1e-9})))
    assert done.exit_code == 1
    assert "over budget" in done.stdout


def test_a_limit_is_one_line(spec_file: Write) -> None:
    done = run(
        "fits",
        spec_file(spec(LARGE, {"gpu": "rtx-3090", "memory_limit": "256 MiB"})),
        "--max",
        "micro-batch",
    )
    assert done.exit_code == 0
    assert done.stdout.startswith("micro-batch: ")
    assert re.search(
        r" fits \(.* GiB, peak in .*\); \d+ (is borderline|does not fit) \(.* GiB, peak in .*\)$", done.stdout
    )


def test_a_spec_can_come_from_standard_input() -> None:
    done = run("fits", "-", "--json", input=yaml.safe_dump(spec()))
    assert done.exit_code == 0
    assert json.loads(done.stdout)["verdict"] == "fits"


def test_every_command_has_help_and_calibrate_is_among_them() -> None:
    text = run("--help").stdout
    for command in ("fits", "estimate", "plan", "explain", "diff", "spec", "gpus", "prices", "models", "calibrate"):
        assert f"  {command} " in text
        assert run(command, "--help").exit_code == 0


def test_the_help_of_calibrate_tells_every_summary_whole_and_loads_no_torch() -> None:
    code = (
        "import sys\nfrom planner.cli import rigplan\n"
        "rigplan(['calibrate', '--help'], standalone_mode=False)\n"
        "assert not {'torch', 'scipy', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    summaries = done.stdout.partition("Commands:\n")[2]
    assert "..." not in summaries
    for command in ("run", "steps", "check", "train", "collectives", "tables"):
        assert f"  {command} " in summaries
    assert summaries.count(".\n") == 6


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_every_command_can_print_json() -> None:
    without = [path for path, command in _commands(rigplan) if "--json" not in str([o.opts for o in command.params])]
    assert without == []


@pytest.mark.parametrize(
    "arguments",
    [
        "fits -",
        "estimate -",
        "plan -",
        "explain - --no-advice",
        "export - --to torchrun",
        "diff - {spec}",
        "diff {spec} -",
    ],
)
def test_a_spec_is_read_from_standard_input_by_whatever_takes_one(arguments: str, spec_file: Write) -> None:
    words = arguments.format(spec=spec_file(spec())).split()
    done = run(*words, "--json", input=yaml.safe_dump(spec()))
    assert done.exit_code == 0
    assert isinstance(json.loads(done.stdout), dict)


@pytest.mark.parametrize("arguments", ["gpus", "gpus l4", "prices", "prices l4", "models", "models gpt2", "spec"])
def test_what_needs_no_spec_prints_json_too(arguments: str) -> None:
    assert json.loads(run(*arguments.split(), "--json").stdout)


def test_a_report_prints_its_plan_as_json(spec_file: Write, tmp_path: Path) -> None:
    done = run("report", "-", "-o", tmp_path / "report.md", "--json", input=yaml.safe_dump(spec()))
    assert json.loads(done.stdout) == planner.plan(spec()).model_dump(mode="json")
    assert (tmp_path / "report.md").exists()


def test_the_shell_completes_commands_and_options() -> None:
    def completed(*words: str) -> list[str]:
        found = ShellComplete(rigplan, {}, "rigplan", "_RIGPLAN_COMPLETE").get_completions(list(words[:-1]), words[-1])
        return [item.value for item in found]

    assert completed("ex") == ["explain", "export"]
    assert completed("calibrate", "ch") == ["check"]
    assert "--no-advice" in completed("explain", "--")


def test_the_shell_completes_gpus_models_and_files() -> None:
    def completed(*words: str) -> list[str]:
        found = ShellComplete(rigplan, {}, "rigplan", "_RIGPLAN_COMPLETE").get_completions(list(words[:-1]), words[-1])
        return [item.value if item.type == "plain" else item.type for item in found]

    assert completed("gpus", "h100-n") == completed("prices", "h100-n") == ["h100-nvl-94gb"]
    assert completed("gpus", "3090") == ["rtx-3090", "rtx-3090-ti"]
    assert completed("gpus", "./my") == ["file"]
    assert completed("import", "--gpu", "H100-S") == ["h100-sxm5-80gb"]
    assert completed("models", "pythia-1") == completed("plan", "--models", "pythia-1")
    assert "pythia-1b" in completed("models", "pythia-1")


def test_every_spec_and_file_is_completed_as_a_path() -> None:
    """Without a word from the command, bash completes no path at all."""
    paths = [
        (path, name)
        for path, command in _commands(rigplan)
        for parameter in command.params
        for name in [parameter.human_readable_name if isinstance(parameter, click.Argument) else parameter.metavar]
        if name
        and name.rstrip(".") in ("SPEC", "FILE", "A", "B", "RUNS", "[RUNS]")
        and [item.type for item in parameter.shell_complete(click.Context(command), "")] != ["file"]
    ]
    assert paths == []


def test_the_version_is_told() -> None:
    told = f"rigplan, version {planner.__version__}\n"
    assert run("--version").stdout == told
    as_module = [sys.executable, "-m", "planner.cli", "--version"]
    assert subprocess.run(as_module, capture_output=True, text=True, check=True).stdout == told


def test_models_are_listed_and_searched() -> None:
    assert "pythia-1b" in run("models", "pythia").stdout
    assert json.loads(run("models", "pythia-1b", "--json").stdout)[0]["parameters"] == 1_011_781_632
    assert run("models", "pithya-1b").exit_code == 2
    (yi,) = [line for line in run("models", "llama").stdout.splitlines() if "yi-34b" in line]
    assert yi.split()[:2] == ["yi-34b", "llama"]  # the family, which is why it is listed


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def test_a_warm_answer_neither_loads_torch_nor_takes_long(spec_file: Write) -> None:
    path = spec_file(spec())
    code = (
        "import sys\nfrom planner.cli import rigplan\n"
        f"rigplan(['fits', {str(path)!r}], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'scipy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)  # traces, where it has to
    began = _children_seconds()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("fits: ")
    assert _children_seconds() - began < LIGHT_SECONDS


def test_an_interruption_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.spec.Spec.load", interrupted)
    monkeypatch.setattr(sys, "argv", ["rigplan", "fits", "spec.yaml"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 130
    assert capsys.readouterr().err.strip() == "rigplan: interrupted"
