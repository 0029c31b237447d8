"""`rigplan spec`: the reference of the spec, as docs/spec.md has it, or its JSON schema."""

from __future__ import annotations

import json

import click


@click.command("spec", short_help="Every field of a spec: what it takes, its default and its meaning.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON schema, which editors can check a spec with.")
def spec(as_json: bool) -> None:
    """Every field of a spec: what it takes, its default and its meaning."""
    if as_json:
        from planner.spec import Spec

        click.echo(json.dumps(Spec.model_json_schema(), indent=2))
        return
    from planner.report.reference import page

    click.echo(page())


__all__ = ["spec"]
