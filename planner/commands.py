"""Commands: a click group whose commands of other files are imported when they are called, and told before that."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar

import click
from click.shell_completion import CompletionItem

WHOLE = 1000  # characters: a summary is a sentence, and never cut


class LightGroup(click.Group):
    """`elsewhere`: name to where a command is (`module:name`) and its summary. Help and completion import none."""

    elsewhere: ClassVar[Mapping[str, tuple[str, str]]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.elsewhere:
            return super().get_command(ctx, cmd_name)
        module, _, name = self.elsewhere[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def summaries(self) -> dict[str, str]:
        """Every command with what it does: those of this file first."""
        own = {name: command.get_short_help_str(WHOLE) for name, command in self.commands.items()}
        return own | {name: text for name, (_, text) in self.elsewhere.items()}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        begin = [(name, text) for name, text in self.summaries().items() if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=text) for name, text in begin), *options]


__all__ = ["LightGroup"]
