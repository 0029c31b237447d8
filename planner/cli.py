"""The command line: `rigplan fits|estimate|plan SPEC`, the catalog's commands, and `calibrate`, loaded when called.

Exit codes: 0 yes; 1 does not fit, or nothing within the budget; 2 wrong input, told in a line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from catalog.errors import RigplanError
from planner import __version__
from planner.arguments import models_option, profile_option, spec_argument
from planner.commands import LightGroup

if TYPE_CHECKING:
    from planner.answer import Estimate, Plan
    from planner.limits import Limit
    from planner.rung import Rung
    from planner.spec import Spec

YES, NO, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130

# Commands of other files, imported when they are called: --help stays light, and planner never imports calibrate.
ELSEWHERE = {
    "calibrate": ("calibrate.cli:calibrate", "Measure this machine into a profile, and check estimates against it."),
    "diff": (
        "planner.explain_command:diff",
        "Two specs or saved answers side by side, and what makes the change.",
    ),
    "explain": (
        "planner.explain_command:explain",
        "Where time and memory go, by operator and module; and what would help.",
    ),
    "gpus": ("planner.catalog_commands:gpus", "Show the accelerators of the catalog, or one of them."),
    "export": ("planner.export_command:export", "Write an option of a plan as a config of another tool."),
    "import": ("planner.import_command:import_", "Read the configs of other tools into a spec."),
    "models": ("planner.model_commands:models", "Show the models that are known by name."),
    "report": ("planner.report_command:report", "Write a plan as a page, with the table of a compute proposal."),
    "prices": ("planner.catalog_commands:prices", "Show what accelerators cost by the hour and to buy."),
    "spec": ("planner.spec_command:spec", "Every field of a spec: what it takes, its default and its meaning."),
}


class _Commands(LightGroup):
    elsewhere = ELSEWHERE

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RigplanError as error:
            _refuse(error)
        except BrokenPipeError:  # whoever reads has read enough, which is no mistake; click itself would exit with 1
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(YES) from None
        except OSError as error:
            _refuse(RigplanError(f"{error.filename or 'standard output'}: {error.strerror}"))


def _refuse(error: RigplanError) -> NoReturn:
    for line in str(error).splitlines() or ["unknown mistake"]:
        click.echo(f"rigplan: error: {line}", err=True)
    raise click.exceptions.Exit(WRONG_INPUT)


def _leave(code: int) -> None:
    if code != YES:
        raise click.exceptions.Exit(code)


@click.group("rigplan", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rigplan")
def rigplan() -> None:
    """Before money is spent on training: will it fit, how long will it take, what will it cost.

    SPEC is a YAML file, or - for standard input. Exit code 0: yes; 1: it does not fit, or nothing is within the
    budget; 2: wrong input.
    """


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        profile_option,
        click.option("--json", "as_json", is_flag=True, help="Print JSON, as the Python answer."),
        spec_argument,
    ):
        command = decorate(command)
    return command


@rigplan.command(short_help="Will it fit? The memory of one GPU, and what would help.")
@_common
@click.option("--ladder", "with_ladder", is_flag=True, help="Show what would save memory even where it fits.")
@click.option(
    "--max",
    "furthest",
    type=click.Choice(["micro-batch", "sequence-length"]),
    help="Instead find the largest that fits.",
)
def fits(spec: str, as_json: bool, profile: str, with_ladder: bool, furthest: str | None) -> None:
    """Will it fit? The memory of one GPU by what holds it, a verdict with its range, and what would help."""
    from planner.report.progress import Progress, reading

    rungs: list[Rung] = []
    with Progress(first=reading(spec)) as progress:
        from planner.answer import Estimate, Plan
        from planner.search import fits as answer
        from planner.spec import Spec

        asked = Spec.load(spec)
        if furthest is not None:
            from planner.limits import furthest_fitting

            found: Estimate | Plan | Limit = furthest_fitting(asked, furthest, profile=profile, progress=progress)
        else:
            found = answer(asked, profile=profile, progress=progress)
            if isinstance(found, Estimate) and (with_ladder or found.verdict != "fits") and not as_json:
                from planner.ladder import climb

                rungs = climb(asked, found, profile=profile, progress=progress)
    if isinstance(found, Estimate):
        _leave(_tell_estimate(found, as_json, spec, rungs))
    elif isinstance(found, Plan):
        _leave(_tell_plan(found, as_json, every=False))
    else:
        click.echo(found.to_json() if as_json else found.text)
        _leave(YES if found.value is not None else NO)


@rigplan.command(short_help="Memory, step time, days and cost of one combination.")
@_common
def estimate(spec: str, as_json: bool, profile: str) -> None:
    """Memory, step time, days and cost of a spec that leaves one combination."""
    from planner.report.progress import Progress, reading

    with Progress(first=reading(spec)) as progress:
        from planner.search import estimate as answer
        from planner.spec import Spec

        asked = Spec.load(spec)
        found = answer(asked, profile=profile, progress=progress)
    code = _tell_estimate(found, as_json, spec, [])
    from planner.rank import over_budget

    _leave(NO if over_budget(found, asked.budget) else code)


@rigplan.command(short_help="Every combination of a spec, ranked; and why the others are out.")
@_common
@click.option(
    "--objective",
    type=click.Choice(["cost", "time", "pareto", "amount", "model"]),
    help="What comes first, instead of the spec's; amount: the most training, model: the largest model for the budget.",
)
@click.option("--within", metavar="TIME", help="The cheapest that finishes within this time, such as 30d.")
@click.option("--under", metavar="USD", help="The fastest that costs no more than this, such as 5000.")
@models_option
@click.option("--all", "every", is_flag=True, help="Show every row of a long table.")
@click.option("--stages", "with_stages", is_flag=True, help="Also naive, free lunch and best of each machine.")
def plan(
    spec: str,
    as_json: bool,
    profile: str,
    objective: str | None,
    within: str | None,
    under: str | None,
    models: str | None,
    every: bool,
    with_stages: bool,
) -> None:
    """Every combination of a spec, ranked; the front of time and cost; and why the others are out."""
    from planner.report.progress import Progress, reading

    with Progress(first=reading(spec)) as progress:
        from planner.question import by_model, narrowed
        from planner.search import plan as answer
        from planner.spec import Spec

        asked = narrowed(Spec.load(spec), objective, within, under, models)
        found = answer(asked, profile=profile, progress=progress)
        if with_stages:
            from planner.stages import staged

            found = found.model_copy(update={"stages": staged(asked, found, profile=profile, progress=progress)})
        if not found.ranked and not as_json:
            found = _with_nearest(by_model(asked)[0], found, profile, progress)
    _leave(_tell_plan(found, as_json, every))


def _with_nearest(asked: Spec, found: Plan, profile: str, progress: Callable[[str], None]) -> Plan:
    """A plan in which nothing works, with what would have as a note."""
    from planner.ladder import nearest

    note = nearest(asked, found, profile=profile, progress=progress)
    return found.model_copy(update={"notes": [note, *found.notes]}) if note else found


def _tell_estimate(found: Estimate, as_json: bool, source: str, rungs: list[Rung]) -> int:
    from planner.report.estimate import page

    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        click.echo(page(found, source))
        if rungs:
            from planner.report.ladder import steps

            click.echo(steps(found, rungs))
    return NO if found.verdict == "does-not-fit" else YES


def _tell_plan(found: Plan, as_json: bool, every: bool) -> int:
    from planner.report.plan import page

    click.echo(found.model_dump_json(indent=2) if as_json else page(found, every=every))
    return YES if found.ranked else NO


def main() -> None:
    """The `rigplan` command."""
    try:
        code = rigplan.main(prog_name="rigplan", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("rigplan: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(WRONG_INPUT)
    except click.ClickException as error:
        _show(error)
        sys.exit(WRONG_INPUT)
    sys.exit(code if isinstance(code, int) else YES)


def _show(error: click.ClickException) -> None:
    hint = " (see --help)" if isinstance(error, click.UsageError) else ""
    click.echo(f"rigplan: error: {' '.join(error.format_message().split())}{hint}", err=True)


if __name__ == "__main__":
    main()
