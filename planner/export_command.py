"""`rigplan export SPEC --to DIALECT`: one ranked option of a plan as a config of another tool."""

from __future__ import annotations

from pathlib import Path

import click

from catalog.errors import RigplanError
from planner.arguments import files, profile_option, spec_argument
from planner.dialects.option import Option
from planner.dialects.table import DIALECTS
from planner.report.progress import Progress, reading

WRITTEN = [name for name, dialect in DIALECTS.items() if dialect.write is not None]


@click.command("export", short_help="Write an option of a plan as a config of another tool.")
@spec_argument
@click.option("--to", "dialect", type=click.Choice(WRITTEN), required=True, help="Whose config is written.")
@click.option(
    "--rank", type=int, default=1, show_default=True, metavar="N", help="Which option, as `rigplan plan` ranks."
)
@click.option(
    "-o", "--output", metavar="FILE", shell_complete=files, help="Write to a file instead of standard output."
)
@profile_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the file's text, and what it cannot say.")
def export(spec: str, dialect: str, rank: int, output: str | None, profile: str, as_json: bool) -> None:
    """Write the N-th option of a plan as a config that the real library reads.

    What a dialect cannot say stands in comments; JSON holds none, so there it goes to standard error.
    Exit code 1 when nothing works.
    """
    import json

    with Progress(first=reading(spec)) as progress:
        from planner.search import plan
        from planner.spec import Spec

        asked = Spec.load(spec)
        found = plan(asked, profile=profile, progress=progress)
    if not found.ranked:
        for out in found.excluded[:1]:
            click.echo(f"rigplan: nothing to export: {out.reason}", err=True)
        raise click.exceptions.Exit(1)
    written = DIALECTS[dialect].writer(Option.of(asked, found, rank))
    if as_json:
        click.echo(json.dumps({"dialect": dialect, "text": written.text, "notices": written.notices}, indent=2))
    elif output is None:
        click.echo(written.text, nl=False)
    else:
        _save(output, written.text)
        click.echo(f"{output}: {dialect}, option {rank} of {len(found.ranked)}")
    if not as_json and written.text.startswith("{"):
        for notice in written.notices:
            click.echo(f"rigplan: {notice}", err=True)


def _save(output: str, text: str) -> None:
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RigplanError(
            f"-o: {output} cannot be written ({error.strerror}); wanted a file in a folder that is there"
        ) from None


__all__ = ["export"]
