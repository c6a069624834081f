"""What every subcommand prints and how it ends: JSON on request, one line for an error, exit status 0, 1 or 2.

0: done, or checked and it holds. 1: checked, and it does not hold. 2: could not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import orjson
import typer
from rich.console import Console

console = Console()
errors = Console(stderr=True, highlight=False)


def print_json(document: Any) -> None:
    """One JSON document on standard output, indented, keys in the order given."""
    typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY).decode())


def fail(message: str, status: int = 2) -> NoReturn:
    """Ends the command with a message on standard error."""
    errors.print(f"preheat: {message}", markup=False, soft_wrap=True)
    raise typer.Exit(status)


@contextmanager
def reported(*kinds: type[Exception], status: int = 2) -> Iterator[None]:
    """Turns the named exceptions into one line on standard error and an exit status."""
    try:
        yield
    except kinds as error:
        if isinstance(error, OSError) and error.filename and error.strerror:
            fail(f"{error.filename}: {error.strerror}", status)
        fail(str(error), status)
