"""`rigplan models`: the models that are known by name."""

from __future__ import annotations

import json

import click

from catalog import presets
from catalog.units import count
from planner import arguments


@click.command("models", short_help="Show the models that are known by name.")
@click.argument("word", required=False, shell_complete=arguments.models)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def models(word: str | None, as_json: bool) -> None:
    """Show the models that are known by name, or those with WORD in their name or family."""
    wanted = (word or "").lower()
    found = [item for item in presets.presets() if wanted in f"{item.name} {item.family} {item.hub}".lower()]
    if not found:
        presets.find(word or "")  # says what was perhaps meant
    if as_json:
        keys = ("name", "family", "hub", "task", "parameters", "source")
        click.echo(json.dumps([{key: getattr(item, key) for key in keys} for item in found], indent=2))
        return
    from planner.report.layout import several, table

    rows = [[item.name, item.family, item.task, count(item.parameters), item.hub] for item in found]
    click.echo(table(rows, ["name", "family", "task", "parameters", "hub id"], "lllrl"))
    others = "Any other: model.config (a transformers config) or model.module (a factory)."
    click.echo(f"\n{several(len(rows), 'model')}. {others}")
