"""`rigplan import FILE...`: configs of other tools as a spec, with what was assumed."""

from __future__ import annotations

import json
import sys

import click

from planner.arguments import files as paths
from planner.arguments import gpus, models
from planner.dialects.document import Document
from planner.dialects.imported import DEFAULT_GPU, imported
from planner.dialects.table import DIALECTS
from planner.report.layout import several

READ = [name for name, dialect in DIALECTS.items() if dialect.looks_so is not None]


@click.command("import", short_help="Read the configs of other tools into a spec.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, shell_complete=paths)
@click.option("--dialect", type=click.Choice(READ), help="What the files are, where that is not recognised.")
@click.option(
    "--model", metavar="NAME", shell_complete=models, help="The model, as `rigplan models` lists, or a hub id."
)
@click.option("--gpu", metavar="NAME", shell_complete=gpus, help="The GPU, as `rigplan gpus` lists.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="How many GPUs.")
@click.option("--sequence-length", type=click.IntRange(min=1), metavar="N", help="Tokens of a sample.")
@click.option("--samples", type=click.IntRange(min=1), metavar="N", help="Samples of an epoch, for days and cost.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the spec, and what was assumed.")
def import_(
    files: tuple[str, ...],
    dialect: str | None,
    model: str | None,
    gpu: str | None,
    count: int | None,
    sequence_length: int | None,
    samples: int | None,
    as_json: bool,
) -> None:
    """Read configs into a spec on standard output: a training command line, a DeepSpeed JSON, an accelerate, axolotl or
    LLaMA-Factory YAML, a Slurm script. Several files are brought together; - is standard input.

    What was assumed is listed as comments, and what was not understood too, so that this works:

    rigplan import train_args.txt | rigplan fits -
    """
    given = {
        "model.name": model,
        "hardware.gpu": gpu,
        "hardware.count": count,
        "data.sequence_length": sequence_length,
        "samples": samples,
    }
    found = imported([Document.load(file) for file in files], dialect=dialect, given=given)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "spec": found.spec,
                    "assumed": found.assumed,
                    "not_understood": found.not_understood,
                    "without_bearing": found.without_bearing,
                },
                indent=2,
            )
        )
        return
    click.echo(found.text(), nl=False)
    if not sys.stdout.isatty():  # the comments go down the pipe; what matters most is told beside it
        for line in [*_guessed(found.assumed), *(f"not understood: {option}" for option in found.not_understood)]:
            click.echo(f"rigplan: {line}", err=True)


def _guessed(assumed: list[str]) -> list[str]:
    if not any(words.startswith(f"gpu {DEFAULT_GPU}: ") for words in assumed):
        return []
    others = f", and {several(len(assumed) - 1, 'other thing')}" if len(assumed) > 1 else ""
    return [f"assumed the GPU ({DEFAULT_GPU}){others}; comments at the top of the spec say all"]


__all__ = ["import_"]
