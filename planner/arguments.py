"""Arguments that several commands take, and what a shell offers for them, besides the names of commands and options.

Names of the catalog are found by how they begin, else by any part of theirs: `4090` is completed to `rtx-4090`.
"""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem


def files(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Paths, which the shell itself knows."""
    return [CompletionItem(begun, type="file")]


def gpus(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Accelerators of the catalog; what looks like a path is the file of one's own."""
    from catalog import store

    return [CompletionItem(begun, type="file")] if "/" in begun else _offered(store.accelerator_names(), begun)


def models(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Models that are known by name."""
    from catalog import presets

    return _offered((preset.name for preset in presets.presets()), begun)


def _offered(names: Iterable[str], begun: str) -> list[CompletionItem]:
    known, word = list(names), begun.lower()
    begin = [name for name in known if name.startswith(word)]
    return [CompletionItem(name) for name in begin or [name for name in known if word in name]]


spec_argument = click.argument("spec", metavar="SPEC", shell_complete=files)
profile_option = click.option(
    "--profile",
    metavar="FILE",
    default="",
    shell_complete=files,
    help="Price with this profile, as `rigplan calibrate` wrote it.",
)
models_option = click.option(
    "--models",
    metavar="NAMES",
    shell_complete=models,
    help="Which of these, such as pythia or a,b: the largest in the budget.",
)

__all__ = ["files", "gpus", "models", "models_option", "profile_option", "spec_argument"]
