"""`rigplan report SPEC -o FILE`: a plan as a page, as Markdown, JSON or CSV, with the table of a compute proposal."""

from __future__ import annotations

from pathlib import Path

import click

from catalog.errors import RigplanError
from planner.arguments import files, models_option, profile_option, spec_argument
from planner.report.export import FORMATS, written
from planner.report.progress import Progress, reading
from planner.report.proposal import programmes

ALL = "all"


@click.command("report", short_help="Write a plan as a page, with the table of a compute proposal.")
@spec_argument
@click.option(
    "-o", "--output", required=True, metavar="FILE", shell_complete=files, help="report.html, .md, .json or .csv."
)
@click.option("--programme", default=ALL, metavar="NAME", help="The form of one programme (nairr, eurohpc, nsf) alone.")
@click.option(
    "--objective", type=click.Choice(["cost", "time", "pareto", "amount", "model"]), help="Instead of the spec's."
)
@click.option("--within", metavar="TIME", help="The cheapest that finishes within this time, such as 30d.")
@click.option("--under", metavar="USD", help="The fastest that costs no more than this, such as 5000.")
@models_option
@profile_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the plan that the page shows.")
def report(
    spec: str,
    output: str,
    programme: str,
    objective: str | None,
    within: str | None,
    under: str | None,
    models: str | None,
    profile: str,
    as_json: bool,
) -> None:
    """Write every combination of SPEC, ranked, as a page that opens from disk; the form follows the file's ending.

    With the request for a compute programme: the reviewer's table and a paragraph, in the programme's unit.
    Exit code 1 when nothing works; the page is written all the same.
    """
    path = Path(output)
    if path.suffix not in FORMATS:
        raise RigplanError(f"-o: found {output!r}, wanted a file that ends in {', '.join(FORMATS)}")
    wanted = list(programmes()) if programme == ALL else [programme.lower()]
    with Progress(first=reading(spec)) as progress:
        from planner.question import narrowed
        from planner.search import plan
        from planner.spec import Spec

        asked = narrowed(Spec.load(spec), objective, within, under, models)
        found = plan(asked, profile=profile, progress=progress)
        progress(f"writing {output}")
        text = written(path.suffix, asked, found, wanted)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RigplanError(
            f"-o: {output} cannot be written ({error.strerror}); wanted a file in a folder that is there"
        ) from None
    told = f"{output}: {len(found.ranked)} ranked, {len(found.excluded)} excluded"
    click.echo(found.model_dump_json(indent=2) if as_json else told)
    if not found.ranked:
        raise click.exceptions.Exit(1)


__all__ = ["report"]
