"""The page of ``/docs``: every endpoint of an OpenAPI document, and commands that run as they stand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import quote

from handlers.shapes import DTYPES, Shape
from handlers.spec import ModelSpec
from warmup.plan import Plan

# Up to this many elements an example carries its numbers; above, it makes them with head -c.
_WRITTEN_ELEMENTS = 32

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --code: #8881; --accent: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --accent: #fb923c; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
pre { background: var(--code); padding: .75rem; overflow-x: auto; border-radius: .4rem; font-size: .85rem; }
code { font-family: ui-monospace, monospace; }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .4rem 0; padding: .4rem .75rem; }
summary { cursor: pointer; display: flex; flex-wrap: wrap; gap: .25rem .75rem; align-items: baseline; }
summary span { opacity: .75; font-size: .9rem; }
.method { color: var(--accent); font-weight: 700; width: 3rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td { border-top: 1px solid var(--line); padding: .3rem .5rem .3rem 0; vertical-align: top; }
"""

_HEADINGS = {
    "server": "Server",
    "models": "Models",
    "infer": "Inference on tensors (Open Inference Protocol v2)",
    "predict": "Inference on files (TorchServe's API)",
}


def render(document: Mapping[str, Any], models: Mapping[str, tuple[ModelSpec, Plan]]) -> str:
    """The page for an OpenAPI document; ``models`` gives each model's declaration and plan for the examples."""
    title = f"{document['info']['title']} {document['info']['version']}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{escape(title)}: endpoints</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1><p>{escape(document['info']['description'])} ",
        'The same as <a href="/openapi.json">OpenAPI 3.1</a>.</p>',
    ]
    if models:
        parts.append("<h2>Try it</h2><p>The address of this server, then a request to each model:</p>")
        parts.append("<pre><code>PREHEAT=http://127.0.0.1:8000</code></pre>")
        for spec, plan in models.values():
            parts.append(f"<h3>{escape(spec.name)}</h3><pre><code>{escape(example(spec, plan))}</code></pre>")
    for tag in document["tags"]:
        operations = _operations(document, tag["name"])
        if operations:
            parts.append(f"<h2>{escape(_HEADINGS[tag['name']])}</h2>")
            parts.extend(operations)
    parts.append("<h2>Schemas</h2>")
    for name, schema in document["components"]["schemas"].items():
        text = escape(json.dumps(schema, indent=2))
        parts.append(f'<details id="{name}"><summary><code>{name}</code></summary><pre>{text}</pre></details>')
    parts.append("</body></html>\n")
    return "\n".join(parts)


def example(spec: ModelSpec, plan: Plan) -> str:
    """Shell lines that send one request of the smallest planned shape, zeros throughout; a file where one is taken."""
    name = quote(spec.name)
    lines = []
    if spec.handler != "tensors":
        lines.append(f"curl -T photo.jpg $PREHEAT/predictions/{name}")
    smallest = min((planned.shape for planned in plan), key=lambda shape: shape.elements, default=None)
    if smallest is not None:
        lines.extend(_infer_lines(f"$PREHEAT/v2/models/{name}/infer", smallest))
    return "\n".join(lines)


def _infer_lines(url: str, shape: Shape) -> list[str]:
    entries: list[dict[str, Any]] = []
    total = 0
    written = shape.elements <= _WRITTEN_ELEMENTS and all(tensor.dtype != "bf16" for tensor in shape)
    for tensor in shape:
        entry: dict[str, Any] = {"name": tensor.name, "shape": tensor.dims, "datatype": DTYPES[tensor.dtype][1]}
        if written:
            entry["data"] = [False if tensor.dtype == "bool" else 0] * tensor.elements
        else:
            size = tensor.elements * tensor.numpy_dtype.itemsize
            entry["parameters"] = {"binary_data_size": size}
            total += size
        entries.append(entry)
    request: dict[str, Any] = {"inputs": entries}
    if not written:
        request["parameters"] = {"binary_data_output": True}
    head = json.dumps(request, separators=(",", ":"))
    if written:
        return [f"curl -H 'Content-Type: application/json' -d '{head}' {url}"]
    head = head.ljust(-(-len(head) // 8) * 8)  # data at a multiple of 8 bytes is taken without a copy
    return [
        f"{{ printf '%s' '{head}'; head -c {total} /dev/zero; }} > request.bin",
        f"curl -H 'Inference-Header-Content-Length: {len(head)}' -H 'Content-Type: application/octet-stream' "
        f"--data-binary @request.bin -o answer.bin {url}",
    ]


def _operations(document: Mapping[str, Any], tag: str) -> list[str]:
    return [
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if tag in operation["tags"]
    ]


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [
        f'<details><summary><code class="method">{method.upper()}</code> <code>{escape(path)}</code> '
        f"<span>{escape(operation['summary'])}</span></summary>"
    ]
    rows = [
        (f"{parameter['name']} ({parameter['in']})", parameter.get("description", ""), parameter["schema"])
        for parameter in operation.get("parameters", ())
    ]
    body = operation.get("requestBody", {}).get("content", {})
    rows += [(f"body: {media}", "", content["schema"]) for media, content in body.items()]
    for code, response in operation["responses"].items():
        content = response["content"]
        rows += [(f"{code}: {media}", response["description"], entry["schema"]) for media, entry in content.items()]
    parts.append("<table>")
    for name, words, schema in rows:
        parts.append(f"<tr><td><code>{escape(name)}</code></td><td>{escape(words)} {_schema(schema)}</td></tr>")
    parts.append("</table></details>")
    return "".join(parts)


def _schema(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{name}"><code>{name}</code></a>'
    words = " | ".join(map(str, schema["enum"])) if "enum" in schema else schema.get("format") or schema.get("type", "")
    return f"<code>{escape(words)}</code>" if words else ""
