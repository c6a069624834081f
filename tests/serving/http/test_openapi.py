"""The OpenAPI document and the documentation page."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from handlers.errors import InvalidInput
from handlers.spec import ModelSpec, TensorSpec
from serving.http import documentation, openapi
from serving.http.oip import Decoder, InferRequest, Wanted
from serving.http.oip_answers import encode
from serving.http.sharedroutes import shared_memory_routes
from warmup.plan import Plan, expand

OUTPUTS = (TensorSpec(name="y", dtype="fp32", dims=("batch", 2)),)


@dataclass
class Model:
    spec: ModelSpec
    plan: Plan
    outputs: tuple[TensorSpec, ...] = OUTPUTS


def model(name: str, inputs: list[dict[str, Any]], grid: dict[str, Any], handler: str = "tensors") -> Model:
    engine = {"kind": "python", "source": "x.py:X"}
    description = {"name": name, "engine": engine, "inputs": inputs, "shapes": {"grid": grid}, "handler": handler}
    spec = ModelSpec.model_validate(description)
    return Model(spec, expand(spec, Path()))


SMALL = model("small", [{"name": "x", "dtype": "float32", "dims": ["batch", 2]}], {"batch": [1, 2]})
PAIR = model(
    "pair",
    [{"name": "image", "dtype": "uint8", "dims": ["batch", 3, "h"]}, {"name": "s", "dtype": "bf16", "dims": ["batch"]}],
    {"batch": [1], "h": [32]},
    handler="digits",
)


def resolve(document: dict[str, Any], reference: str) -> dict[str, Any]:
    return {**document["components"]["schemas"][reference], "components": document["components"]}


def test_the_document_is_openapi() -> None:
    OpenAPIV31SpecValidator(openapi.document([SMALL, PAIR])).validate()
    OpenAPIV31SpecValidator(openapi.document([])).validate()


def test_every_model_has_its_paths() -> None:
    paths = openapi.document([SMALL, PAIR])["paths"]
    assert {"/v2/models/small/infer", "/v2/models/pair/versions/1/infer", "/predictions/pair", "/ping"} <= set(paths)


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"data": [[1.5, 2]]}, True),
        ({"parameters": None}, True),
        ({"data": ["a", 2]}, False),
        ({"data": 3}, False),
        ({"data": [1e300, 2]}, False),
        ({"shape": [1, 3]}, False),
        ({"shape": [0, 2]}, False),
        ({"shape": [1]}, False),
        ({"datatype": "FP16"}, False),
        ({"name": "z"}, False),
        ({"parameters": {"binary_data_size": -1}, "data": ...}, False),
    ],
)
def test_the_schema_of_a_request_agrees_with_the_decoder(change: dict[str, Any], fits: bool) -> None:
    entry = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2], **change}
    request = {"inputs": [{key: value for key, value in entry.items() if value is not ...}]}
    schema = resolve(openapi.document([SMALL]), "InferRequest.small")
    assert jsonschema.Draft202012Validator(schema).is_valid(request) == fits
    text = json.dumps(request).encode()
    if fits:
        Decoder(SMALL.spec.inputs, OUTPUTS).decode(text, None)
    else:
        with pytest.raises(InvalidInput):
            Decoder(SMALL.spec.inputs, OUTPUTS).decode(text, None)


def test_answers_fit_their_schema() -> None:
    schema = resolve(openapi.document([SMALL]), "InferResponse")
    for request in (InferRequest("7", {}), InferRequest(None, {}, (Wanted("y", True),))):
        text, headers = encode("small", "1", request, {"y": np.array([[1, np.nan]], np.float32)})
        length = int(dict(headers).get("inference-header-content-length", len(text)))
        jsonschema.validate(json.loads(text[:length]), schema)


class _Assets(HTMLParser):
    """Collects what a page would load, and the text of its code blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "link", "iframe"):
            self.loads.append(tag)
        if tag == "a":
            self.links.append(given["href"] or "")


def test_the_page_loads_nothing_and_shows_every_path() -> None:
    text = openapi.page([SMALL, PAIR])
    found = _Assets()
    found.feed(text)
    assert found.loads == []
    assert "url(" not in text and "@import" not in text
    assert all(link.startswith(("/", "#")) for link in found.links)
    anchors = set(re.findall(r'id="([^"]+)"', text))
    assert {link[1:] for link in found.links if link.startswith("#")} <= anchors
    for path in openapi.document([SMALL, PAIR])["paths"]:
        assert f"<code>{path}</code>" in text


def test_a_small_example_carries_its_numbers() -> None:
    line = documentation.example(SMALL.spec, SMALL.plan)
    body = re.search(r"-d '(.*?)'", line)
    assert body is not None
    assert Decoder(SMALL.spec.inputs).decode(body[1].encode(), None).inputs["x"].shape == (1, 2)


def test_a_large_example_makes_a_request_that_decodes(tmp_path: Path) -> None:
    photo, make, send = documentation.example(PAIR.spec, PAIR.plan).splitlines()
    assert photo == "curl -T photo.jpg $PREHEAT/predictions/pair"
    subprocess.run(["sh", "-c", make], cwd=tmp_path, check=True)
    length = re.search(r"Content-Length: (\d+)", send)
    assert length is not None
    decoded = Decoder(PAIR.spec.inputs).decode((tmp_path / "request.bin").read_bytes(), int(length[1]))
    assert decoded.binary_default
    assert {name: array.shape for name, array in decoded.inputs.items()} == {"image": (1, 3, 32), "s": (1,)}


def test_shared_memory_is_described_where_there_is_any() -> None:
    paths = {path for path in openapi.document([SMALL], shared_memory=True)["paths"] if "sharedmemory" in path}
    assert paths == {route.path.replace("{name}", "{region}") for route in shared_memory_routes(None)}
    assert not any("sharedmemory" in path for path in openapi.document([SMALL])["paths"])
    assert "systemsharedmemory" in openapi.page([SMALL], shared_memory=True)
