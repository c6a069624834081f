"""The command ``preheat``. Each subcommand is one module here, imported only when it is asked for."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

# A module names its typer application ``app``: one command where the subcommand stands alone, several commands where
# it is a group. Order is the order of the help page.
COMMANDS: dict[str, str] = {
    "demo": "serving.cli.demo",
    "serve": "serving.cli.serve",
    "warm": "serving.cli.warm",
    "plan": "serving.cli.plan",
    "verify": "serving.cli.verify",
    "doctor": "serving.cli.doctor",
    "bench": "serving.cli.bench",
    "archive": "serving.cli.archive",
    "report": "serving.cli.report",
    "bundle": "serving.cli.bundle",
    "db": "serving.cli.db",
    "key": "serving.cli.key",
}


class _Lazy(TyperGroup):
    def list_commands(self, ctx: typer.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(COMMANDS[cmd_name]).app)
        command.name = cmd_name
        return command


app = typer.Typer(cls=_Lazy, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _preheat() -> None:
    """Serve models so that no request ever pays for tuning: warm, prove, ship, serve, see."""


def main() -> None:
    """The console script's entry."""
    app()
