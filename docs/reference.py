"""Writes docs/reference.md from the code: every key of model.yaml, every metric, every command with its options.

python docs/reference.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from prometheus_client import Histogram

from handlers.spec import ModelSpec
from serving.cli import app
from serving.metrics.metrics import Metrics

TARGET = Path(__file__).resolve().parent / "reference.md"


def render() -> str:
    """The page as Markdown."""
    lines = [
        "# Reference",
        "",
        "Made by `python docs/reference.py` from the code; a test compares them.",
        "",
        "## model.yaml",
        "",
        "Explained in [models.md](models.md). A key without a default must be given.",
        "",
        "| key | what is allowed | default |",
        "| --- | --- | --- |",
        *(f"| `{key}` | {allowed} | {default} |" for key, allowed, default in keys()),
        "",
        "## Metrics",
        "",
        "Explained in [metrics.md](metrics.md).",
        "",
        "| metric | type | labels | |",
        "| --- | --- | --- | --- |",
        *(f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in metrics()),
        "",
        "## Commands",
        "",
        "`preheat COMMAND --help` says more.",
        "",
        *commands(),
    ]
    return "\n".join(lines).rstrip() + "\n"


def keys() -> Iterator[tuple[str, str, str]]:
    """Every key with its path, what it may be, and its default."""
    schema = ModelSpec.model_json_schema()
    yield from _keys("", schema, schema["$defs"])


def _keys(path: str, schema: dict[str, Any], definitions: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, field in schema["properties"].items():
        required = name in schema.get("required", ())
        inner, suffix = _inner(field, definitions)
        if inner is not None:
            yield from _keys(f"{path}{name}{suffix}.", inner, definitions)
        else:
            default = "" if required else f"`{_literal(field.get('default'))}`"
            yield f"{path}{name}", _allowed(field, definitions), default


def _inner(field: dict[str, Any], definitions: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The object that a field is, or is a list of."""
    if "$ref" in field:
        return definitions[field["$ref"].rpartition("/")[2]], ""
    if "$ref" in field.get("items", {}):
        return definitions[field["items"]["$ref"].rpartition("/")[2]], "[]"
    return None, ""


def _allowed(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    if "$ref" in field:
        inner = definitions[field["$ref"].rpartition("/")[2]]
        return "{" + ", ".join(inner["properties"]) + "}"
    for choice in ("anyOf", "oneOf"):
        if choice in field:
            return " or ".join(_allowed(one, definitions) for one in field[choice] if one.get("type") != "null")
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    kind = field.get("type", "anything")
    if kind == "array":
        return f"list of {_allowed(field.get('items', {}), definitions)}"
    if kind == "object":
        return f"mapping to {_allowed(_values(field), definitions)}"
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    return ", ".join([kind, *(f"{sign} {field[name]:,}" for name, sign in bounds.items() if name in field)])


def _values(field: dict[str, Any]) -> dict[str, Any]:
    patterns = list(field.get("patternProperties", {}).values())
    values = patterns[0] if patterns else field.get("additionalProperties", {})
    return values if isinstance(values, dict) else {}


def _literal(value: object) -> str:
    if isinstance(value, (list, dict)):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def metrics() -> Iterator[tuple[str, str, str, str]]:
    """Every metric by the name that queries use."""
    for metric in vars(Metrics()).values():
        if not hasattr(metric, "_labelnames"):
            continue
        kind = "histogram" if isinstance(metric, Histogram) else metric._type
        name = metric._name + ("_total" if kind == "counter" else "")
        yield name, kind, ", ".join(metric._labelnames), metric._documentation


def commands() -> Iterator[str]:
    """A section for each command, with its options."""
    root: Any = typer.main.get_command(app)
    for path, command in _walk(("preheat",), root):
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option" and not p.hidden and p.name != "help"]
        options = [p for p in options if p.name not in ("install_completion", "show_completion")]
        yield f"### {' '.join([*path, *(_argument(p) for p in arguments)])}"
        yield ""
        yield " ".join((command.help or "").split("\n\n")[0].split())
        yield ""
        if options:
            yield "| option | |"
            yield "| --- | --- |"
            for option in sorted(options, key=lambda p: max(p.opts, key=len)):
                names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
                yield f"| {names} | {_cell(option.help or '')} |"
            yield ""


def _walk(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    context = typer.Context(command)
    for name in command.list_commands(context):
        yield from _walk((*path, name), command.get_command(context, name))


def _argument(parameter: Any) -> str:
    name = re.sub(r"[^A-Z]", "", (parameter.metavar or parameter.name).upper())
    name += "..." if parameter.nargs != 1 else ""
    return name if parameter.required else f"[{name}]"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
