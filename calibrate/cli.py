"""`rigplan calibrate`: measure this machine, check a profile against real runs or a log, make real runs."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from calibrate import slurm
from catalog.errors import RigplanError
from planner.commands import LightGroup

if TYPE_CHECKING:
    from rich.progress import Progress

    from calibrate.sweep import Job, Summary
    from catalog.profile import Factor

DEFAULT_MINUTES = 10.0
QUICK_MINUTES = 2.0
RUNS_SUFFIX = ".runs.jsonl"  # beside the profile: what it was fitted from, and what --resume continues
FOR_MINUTES = 5.0  # a spec's own calls need one; this is a limit for a slow device

STEPS_SHARE = 0.25  # of the minutes, at most, for real training steps; the kernels have the rest
STEPS_MINUTES = 1.0  # what all of them take

MINIMUM_SECONDS = 0.02  # of device time a call: thousands of calls have to fit into the minutes
WARM_UP_SECONDS = 0.005

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
SPEC = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)  # or - for standard input

Command = Callable[..., Any]


class _Told(click.ClickException):
    """A user's mistake: one line, exit code 2."""

    exit_code = 2


def _telling(command: Command) -> Command:
    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return command(*arguments, **options)
        except RigplanError as error:
            raise _Told(str(error)) from None

    return run


class _Calibrate(LightGroup):
    elsewhere: ClassVar[Mapping[str, tuple[str, str]]] = {
        "train": (
            "calibrate.cases:main",
            "Run cases for a few real training steps each, and write a JSON record a line.",
        ),
        "collectives": ("calibrate.collectives:main", "Time the collectives of the GPUs at hand into a link profile."),
        "tables": ("calibrate.llm_tables:main", "Compare predictions with published runs on several GPUs."),
    }


@click.group(cls=_Calibrate)
def calibrate() -> None:
    """Measure a GPU once; every later plan for it is priced with what was measured."""


@calibrate.command()
@click.option(
    "--minutes", type=click.FloatRange(min=0), default=None, help=f"Time to measure; {DEFAULT_MINUTES:g} if not said."
)
@click.option("--quick", is_flag=True, help=f"{QUICK_MINUTES:g} minutes: every kind of operator, coarsely.")
@click.option("--for", "specs", multiple=True, type=SPEC, metavar="SPEC", help="Time the very operators of this spec.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Where the profile goes.")
@click.option("--resume", is_flag=True, help="Go on where an earlier run with the same output stopped.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON at the end: what was timed, and the profile's facts.")
@slurm.options
@_telling
def run(
    minutes: float | None, quick: bool, specs: tuple[Path, ...], output: Path | None, resume: bool, as_json: bool,
    as_job: bool, partition: str | None, account: str | None, slurm_time: str,
) -> None:  # fmt: skip
    """Time this machine's GPU and write its profile; with --slurm, a GPU of the cluster."""
    if minutes is not None and quick:
        raise RigplanError("found --minutes and --quick; wanted one of them")
    if as_job and Path("-") in specs:
        raise RigplanError("--for -: a job of the cluster reads no standard input; wanted a file")
    if as_job:
        click.echo(
            _as_job(_said(minutes, quick, specs, output, resume, as_json), partition, account, slurm_time), nl=False
        )
        return
    facts = _device_facts()
    output = output or Path(f"{facts['accelerator']}.json")
    runs = output.with_name(output.name + RUNS_SUFFIX)
    if runs.exists() and not resume:
        if not specs:
            raise RigplanError(f"{runs} exists: add --resume to go on with it, or name another -o")
        click.echo(f"adding to {runs}", err=True)
    from calibrate import fit, sweep

    sweep.append(runs, {"header": facts | {"method_version": fit.METHOD_VERSION}})
    for warning in facts.get("warnings", ()):
        click.echo(f"warning: {warning}", err=True)
    limit = minutes if minutes is not None else QUICK_MINUTES if quick else FOR_MINUTES if specs else DEFAULT_MINUTES
    if not specs:
        _host(runs)
        began = time.monotonic()
        _train(runs, str(facts["accelerator"]), min(STEPS_MINUTES, STEPS_SHARE * limit))
        limit -= (time.monotonic() - began) / 60
    jobs = _traced(specs) if specs else sweep.all_jobs()
    summary = _timed(jobs, runs, limit)
    _tell(summary, runs, as_json)
    if summary.measured + summary.known == 0:
        raise RigplanError(f"nothing could be timed; {runs} says why, call by call")
    _write_profile(runs, output, as_json)
    if as_json:
        click.echo(json.dumps(_as_json(summary, output)))


def _said(
    minutes: float | None, quick: bool, specs: tuple[Path, ...], output: Path | None, resume: bool, as_json: bool
) -> list[str]:
    """The command that a job runs: this one, with files by their whole paths."""
    flags = {"--quick": quick, "--resume": resume, "--json": as_json}
    words = ["run", *(flag for flag, given in flags.items() if given)]
    words += [] if minutes is None else ["--minutes", f"{minutes:g}"]
    words += [] if output is None else ["-o", str(output.resolve())]
    return [*words, *(word for spec in specs for word in ("--for", str(spec.resolve())))]


def _as_job(words: list[str], partition: str | None, account: str | None, time_limit: str) -> str:
    return slurm.run(words, slurm.place(partition, account, time_limit), _say)


def _device_facts() -> dict[str, Any]:
    """What there is to calibrate; RigplanError when there is no GPU."""
    from calibrate import device

    return dict(device.header())


def _host(runs: Path) -> None:
    """Add the host's factors, unless an earlier part of the run has them."""
    from calibrate import host, sweep

    if any("factor" in line for line in sweep.read_lines(runs)):
        return
    for factor in host.factors():
        sweep.append(runs, factor.line())


def _train(runs: Path, accelerator: str, minutes: float) -> None:
    """Add records of real training steps, unless an earlier part of the run has them."""
    from calibrate import steps, sweep

    if minutes <= 0 or any("training" in line for line in sweep.read_lines(runs)):
        return
    for record in steps.trained(accelerator, minutes, _say):
        sweep.append(runs, {"training": record})


def _say(text: str) -> None:
    click.echo(text, err=True)


def _traced(specs: Iterable[Path]) -> list[Job]:
    """The calls of the specs' traces, each once."""
    from calibrate.sweep import job_of
    from planner.evaluate import calls_of

    return list(dict.fromkeys(job_of(call, tf32) for path in specs for call, tf32 in calls_of(path, progress=_say)))


def _timed(jobs: list[Job], runs: Path, minutes: float) -> Summary:
    """Run the jobs with a bar of what is done and what is left of the time."""
    from calibrate import sweep, timing

    with _bar() as progress:
        task = progress.add_task("kernels", total=len(jobs))

        def report(job: Job, summary: Summary) -> None:
            done = summary.known + summary.measured + len(summary.skipped)
            progress.update(task, completed=done, description=job.call.name)

        measure = functools.partial(timing.measure, minimum_seconds=MINIMUM_SECONDS, warm_up_seconds=WARM_UP_SECONDS)
        return sweep.run(jobs, runs, measure, minutes=minutes, report=report)


@contextmanager
def _bar() -> Iterator[Progress]:
    """A bar on standard error that is gone when it is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:40.40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield progress


def _as_json(summary: Summary, output: Path) -> dict[str, Any]:
    """What a run has timed, and the profile that it became."""
    from catalog import profile

    found = profile.load(output)
    return {
        "profile": str(output),
        "accelerator": found.accelerator,
        "points": len(found.points),
        "measured": summary.measured,
        "known_before": summary.known,
        "left": summary.left,
        "skipped": [reason for _, reason in summary.skipped],
        "interrupted": summary.interrupted,
        "residuals": dict(found.residuals),
        "factors": {name: dataclasses.asdict(factor) for name, factor in found.factors.items()},
    }


def _tell(summary: Summary, runs: Path, as_json: bool) -> None:
    known = f", {summary.known} known before" if summary.known else ""
    left = f", {summary.left} left for another --resume" if summary.left else ""
    stopped = "interrupted: " if summary.interrupted else ""
    click.echo(
        f"{stopped}{summary.measured} calls timed{known}{left}; {len(summary.skipped)} could not be timed ({runs})",
        err=as_json,
    )
    reasons: dict[str, int] = {}
    for _, reason in summary.skipped:
        reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in sorted(reasons.items(), key=lambda pair: -pair[1])[:8]:
        click.echo(f"  {count:4d} x {reason[:150]}", err=as_json)


def _write_profile(runs: Path, output: Path, as_json: bool) -> None:
    """Fit what was measured. Where only a spec's own calls were, they become exact points of the shipped profile."""
    from calibrate import fit, sweep
    from catalog import profile

    lines = sweep.read_lines(runs)
    found = fit.fit(lines, output.name.partition(".json")[0])
    shipped = profile.own(found.accelerator)
    if shipped is not None and not any("factor" in line for line in lines):
        found = dataclasses.replace(shipped, name=found.name, points={**shipped.points, **found.points})
    profile.save(found, output)
    residuals = ", ".join(f"{kind} {value:.1%}" for kind, value in sorted(found.residuals.items()))
    click.echo(f"{output}: profile of {found.accelerator}, {len(found.points)} exact points", err=as_json)
    click.echo(f"median error on held-out shapes: {residuals or 'too few shapes'}", err=as_json)
    records = [line["training"] for line in lines if "training" in line]
    if records:
        try:
            _tell_factors(_improved(output, records), as_json)
        except RigplanError as error:  # the kernels are worth a profile of their own
            click.echo(f"warning: no factors from training steps: {error}", err=True)


def _improved(profile: Path, records: Sequence[dict[str, Any]]) -> dict[str, Factor]:
    """Fit the factors of real training steps into a profile."""
    from calibrate import steps

    return steps.improve(profile, records, _say)


def _tell_factors(factors: Mapping[str, Factor], as_json: bool) -> None:
    for name, factor in factors.items():
        spread = "" if factor.residual is None else f", spread {factor.residual:.1%}"
        click.echo(f"{name:24s} {factor.value:.4g} {factor.unit}  ({factor.source}{spread})", err=as_json)


@calibrate.command("steps")
@click.argument("runs", type=FILE, nargs=-1, required=True)
@click.option("--profile", type=FILE, required=True, help="The profile that the factors are written into.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the factors by name.")
@_telling
def steps_command(runs: tuple[Path, ...], profile: Path, as_json: bool) -> None:
    """Fit what the training RUNS (JSON lines of `calibrate train`, a file a machine) show of host and long runs into a
    profile."""
    from calibrate import steps

    factors = _improved(profile, steps.read(*runs))
    _tell_factors(factors, as_json)
    click.echo(f"{profile}: factors written", err=as_json)
    if as_json:
        click.echo(json.dumps({name: dataclasses.asdict(factor) for name, factor in factors.items()}))


@calibrate.command()
@click.argument("runs", type=FILE, required=False)
@click.option("--profile", type=FILE, help="Price with this profile.")
@click.option("--only", multiple=True, metavar="NAME", help="Only runs of this name; * stands for anything.")
@click.option("--from-log", "log", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
              help="A pasted training log, or -, instead of RUNS.")  # fmt: skip
@click.option("--spec", type=SPEC, help="What the log is of: a spec that leaves one combination.")
@click.option("--micro-steps", is_flag=True, help="The log's iterations are micro-steps, several to an optimizer step.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_telling
def check(
    runs: Path | None, profile: Path | None, only: tuple[str, ...], log: Path | None, spec: Path | None,
    micro_steps: bool, as_json: bool,
) -> None:  # fmt: skip
    """Compare predictions with real RUNS (JSON lines of `calibrate train`, or CSV), worst first, or with a log."""
    priced_with = str(profile) if profile else ""
    if runs is not None and log is None and spec is None:
        _check_runs(runs, priced_with, only, as_json)
    elif runs is None and log is not None and spec is not None:
        _check_log(log, spec, priced_with, micro_steps, as_json)
    else:
        raise RigplanError("wanted either RUNS, or --from-log LOG with --spec SPEC")


def _check_runs(runs: Path, profile: str, only: tuple[str, ...], as_json: bool) -> None:
    from calibrate import check as checking

    records = checking.chosen(checking.read(runs), only)
    with _bar() as progress:
        task = progress.add_task("comparing", total=len(records))

        def report(done: int, total: int, name: str) -> None:
            progress.update(task, completed=done, total=total, description=name)

        workers = min(checking.WORKERS, os.cpu_count() or 1)
        cases, left_out = checking.compared(records, profile, workers=workers, report=report)
    if as_json:
        click.echo(json.dumps([case.as_json() for case in cases]))
        return
    for line in checking.report(cases, left_out):
        click.echo(line)


def _check_log(log: Path, spec: Path, profile: str, micro_steps: bool, as_json: bool) -> None:
    from calibrate import log as logs
    from planner.search import estimate

    if str(log) == str(spec) == "-":
        raise RigplanError("found - for both --from-log and --spec; wanted a file for one of them")
    text = sys.stdin.read() if str(log) == "-" else log.read_text(encoding="utf-8", errors="replace")
    logs.found(text)  # a log that says nothing is told before the spec is traced
    answer = estimate(spec, profile=profile, progress=_say)
    correction = logs.corrected(logs.read(text, logs.batch_of(answer), micro_steps=micro_steps), answer)
    if as_json:
        click.echo(json.dumps(correction.as_json()))
        return
    for line in logs.report(correction, answer):
        click.echo(line)


if __name__ == "__main__":
    calibrate()
