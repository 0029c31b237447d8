"""`rigplan explain SPEC`: where the time and the memory of one combination go; `rigplan diff A B`: two side by side."""

from __future__ import annotations

import click

from planner.arguments import files, profile_option, spec_argument
from planner.report.layout import columns
from planner.report.progress import Progress, reading


@click.command("explain", short_help="Where time and memory go, by operator and module; and what would help.")
@spec_argument
@click.option("--rank", default=1, metavar="N", help="The Nth of the plan's ranking, where the spec leaves several.")
@click.option("--all", "every", is_flag=True, help="Show every operator and module.")
@click.option("--no-advice", "quick", is_flag=True, help="Do not work out what would help, which traces variants.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: every row, and every piece of advice.")
@profile_option
def explain(spec: str, rank: int, every: bool, quick: bool, as_json: bool, profile: str) -> None:
    """Where the time and the memory of one combination of SPEC go, and what would help.

    The rows add up: those of time to the step, those of memory to the peak. Every piece of advice is an answer to the
    changed spec, not a rule of thumb: it takes a trace for each change, and is told after the rest. Exit code 1 when it
    does not fit.
    """
    with Progress(first=reading(spec)) as progress:
        from planner.explained import advised
        from planner.explained import explain as answer
        from planner.report.explanation import advice, page
        from planner.spec import Spec

        asked = Spec.load(spec)
        found = answer(asked, rank=rank, profile=profile, progress=progress, advice=as_json and not quick)
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        click.echo(page(found, spec, width=columns(), every=every))
    if not as_json and not quick:  # what is known is told before what takes a trace for each change
        with Progress(first="what would help") as progress:
            found = advised(asked, found, profile=profile, progress=progress)
        click.echo(advice(found, width=columns()))
    if found.estimate.verdict == "does-not-fit":
        raise click.exceptions.Exit(1)


@click.command("diff", short_help="Two specs or saved answers side by side, and what makes the change.")
@click.argument("before", metavar="A", shell_complete=files)
@click.argument("after", metavar="B", shell_complete=files)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@profile_option
def diff(before: str, after: str, as_json: bool, profile: str) -> None:
    """A and B side by side: verdict, memory, step, days and USD, the knobs that differ, and what makes the change.

    Each is a spec, or an answer that `rigplan explain --json` (or estimate, fits, plan) has printed; of several
    combinations, the best. One of them may be - for standard input.
    """
    with Progress(first=reading(before, after)) as progress:
        from planner.difference import difference
        from planner.report.difference import page

        found = difference(before, after, profile=profile, progress=progress)
    click.echo(found.model_dump_json(indent=2) if as_json else page(found, (before, after), columns()))


__all__ = ["diff", "explain"]
