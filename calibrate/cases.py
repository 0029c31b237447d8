"""A list of cases, each run in a process of its own: a clean device, and a crash is a record instead of the end.

A case file is YAML: `defaults` (a spec that every case starts from) and `cases`, most wanted first, each {name, spec,
memory_fraction}. The parent imports the libraries and never touches the device, so that a forked child starts at once.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from catalog.errors import RigplanError

# What a training step imports late; loaded once in the parent. None of it starts CUDA.
PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.utils.checkpoint",
    "torch.distributed.tensor",  # clipping and optimizers look for it
    "transformers",
    "planner.models",
    "calibrate.train",
)
DEFAULT_GPU = "h200-sxm"  # a spec names one; where the run takes place decides
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a spec with single values, and the share of the device's memory that it may use."""

    name: str
    spec: dict[str, Any]
    memory_fraction: float | None = None


def load(path: Path) -> list[Case]:
    """The cases of a file, in order. RigplanError says what is wrong with it."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise RigplanError(f"{path}: cannot be read as YAML ({error}); wanted defaults and cases") from None
    if not isinstance(raw, Mapping) or not isinstance(raw.get("cases"), list):
        raise RigplanError(f"{path}: found no list `cases`; wanted cases, each with name and spec")
    defaults = {"hardware": {"gpu": DEFAULT_GPU}} | raw.get("defaults", {})
    cases = [
        Case(entry["name"], merged(defaults, entry["spec"]), entry.get("memory_fraction")) for entry in raw["cases"]
    ]
    names = [case.name for case in cases]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RigplanError(f"{path}: found {', '.join(twice)} twice; wanted a name of its own for every case")
    return cases


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, mapping by mapping; a model is taken whole."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping) and key != "model"
        result[key] = merged(result[key], value) if both else value
    return result


def run_case(case: Case, device: str, history: Path | None) -> dict[str, Any]:
    """The record of one case in this very process; every failure becomes one too."""
    from calibrate import train

    keep = history / f"{case.name}.json.gz" if history is not None else None
    try:
        record = train.run(case.spec, device=device, memory_fraction=case.memory_fraction, keep_history=keep)
    except Exception as error:  # a case that fails must not hide the others
        kind = "unsupported" if isinstance(error, RigplanError) else type(error).__name__
        record = {"spec": case.spec, "error": kind, "message": str(error)[:800]}
    return {"name": case.name, **record}


def isolated(case: Case, device: str, history: Path | None, timeout_seconds: float) -> dict[str, Any]:
    """The record of one case, run in a forked child that may die or be stopped after `timeout_seconds`."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "record.json"
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:  # pragma: no cover - lives in the child
            code = 1
            try:
                answer.write_text(json.dumps(run_case(case, device, history)), encoding="utf-8")
                code = 0
            finally:
                os._exit(code)  # neither the parent's exit handlers nor its buffers are the child's
        status = _wait(child, timeout_seconds)
        if answer.is_file() and (text := answer.read_text(encoding="utf-8")).endswith("}"):
            record: dict[str, Any] = json.loads(text)
            return record
    why = f"took more than {timeout_seconds:.0f} s" if status is None else f"ended with {_said(status)}"
    return {"name": case.name, "spec": case.spec, "error": "timeout" if status is None else "crash", "message": why}


def _wait(child: int, timeout_seconds: float) -> int | None:
    """The child's exit status; None when it had to be stopped."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(POLL_SECONDS)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _said(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def preload(cases: Iterable[Case]) -> None:
    """Import once what every child needs."""
    wanted = list(PRELOADED)
    if any("lora" in case.spec.get("model", {}) for case in cases):
        wanted.append("peft")
    for name in wanted:
        try:
            importlib.import_module(name)
        except ImportError as error:
            click.echo(f"without {name}: {error}", err=True)


def told(record: Mapping[str, Any]) -> str:
    """One line about a record."""
    if "error" in record:
        return f"{record['error']}: {(str(record['message']).splitlines() or [''])[0][:160]}"
    if record.get("oom"):
        return f"out of memory in {record['stage']}"
    peaks = [record.get("peak_allocated_bytes"), record.get("peak_reserved_bytes")]
    memory = " / ".join("-" if peak is None else f"{peak / 2**30:.2f}" for peak in peaks)
    bound = record["host_seconds"] / record["step_seconds"]
    return f"{memory} GiB, {1000 * record['step_seconds']:.1f} ms a step, host {bound:.0%}, loss {record['loss']:.3g}"


@click.command()
@click.argument("cases_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="JSON lines.")
@click.option("--device", default="cuda", type=click.Choice(["cuda", "cpu"]))
@click.option("--only", multiple=True, help="Run the case of this name (may be given several times).")
@click.option("--skip", default=0, help="Leave out the first cases of the list.")
@click.option("--history", type=click.Path(file_okay=False, path_type=Path), help="Keep the allocator's events here.")
@click.option("--minutes", default=60.0, help="Start no case after this time.")
@click.option("--timeout", default=90.0, help="Seconds a case may take.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as a line of JSON too.")
def main(
    cases_file: Path,
    output: Path,
    device: str,
    only: tuple[str, ...],
    skip: int,
    history: Path | None,
    minutes: float,
    timeout: float,
    as_json: bool,
) -> None:
    """Run the cases of CASES_FILE for a few real training steps each, and write one JSON record a line."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # to ask for a GPU must not start CUDA before the fork
    began = time.monotonic()
    try:
        cases = [case for case in load(cases_file)[skip:] if not only or case.name in only]
    except RigplanError as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from None
    preload(cases)
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a", encoding="utf-8") as file:
        for number, case in enumerate(cases, 1):
            if time.monotonic() - began > 60 * minutes:
                click.echo(
                    f"{minutes:g} minutes are over: left out the last {len(cases) - number + 1} cases", err=as_json
                )
                break
            start = time.monotonic()
            record = isolated(case, device, history, timeout)
            record["wall_seconds"] = round(time.monotonic() - start, 2)
            file.write(json.dumps(record) + "\n")
            file.flush()
            line = f"{number}/{len(cases)} {case.name}: {told(record)} [{record['wall_seconds']:.1f} s]"
            click.echo(json.dumps(record) if as_json else line)
