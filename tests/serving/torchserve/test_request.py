"""Requests as TorchServe's worker hands them over, back to what the client sent."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.errors import InvalidInput
from handlers.handler import Payload
from serving.http.answers import BodyTooLarge, EncodingRefused
from serving.torchserve.request import payload

_FORM = {"Content-Type": "multipart/form-data; boundary=x"}


@pytest.mark.parametrize(
    ("entries", "headers", "expected"),
    [
        ({"body": bytearray(b"abc")}, {}, Payload(b"abc")),
        ({"body": b"abc"}, {"CONTENT-type": "image/png"}, Payload(b"abc", "image/png")),
        ({"body": {"a": [1, 2]}}, {"content-type": "application/json"}, Payload(b'{"a":[1,2]}', "application/json")),
        ({"body": "héllo"}, {"content-type": "text/plain"}, Payload("héllo".encode(), "text/plain")),
        ({}, {"content-type": "text/plain"}, Payload(b"", "text/plain")),
        (
            {"left": b"1", "data": bytearray(b"2")},
            {**_FORM, "left": {"content-type": ""}, "data": {"content-type": "image/png"}},
            Payload(b"2", "image/png", {"left": b"1", "data": b"2"}),
        ),
        (
            {"only": b"1"},
            {**_FORM, "only": {"content-type": ""}},
            Payload(b"1", "application/octet-stream", {"only": b"1"}),
        ),
        ({"left": b"1", "right": b"2"}, _FORM, Payload(b"", _FORM["Content-Type"], {"left": b"1", "right": b"2"})),
    ],
)
def test_bodies(entries: dict[str, Any], headers: dict[str, Any], expected: Payload) -> None:
    assert payload(entries, headers, 100) == expected


def test_all_parts_together_are_limited() -> None:
    with pytest.raises(BodyTooLarge, match="the body has 5 bytes, at most 4 are allowed"):
        payload({"left": b"123", "right": b"45"}, _FORM, 4)


def test_a_form_without_parts_is_refused() -> None:
    with pytest.raises(InvalidInput, match="multipart form"):
        payload({}, _FORM, 100)


def test_a_compressed_body_is_refused() -> None:
    with pytest.raises(EncodingRefused, match="gzip"):
        payload({"body": b"x"}, {"Content-Encoding": "gzip"}, 100)
    assert payload({"body": b"x"}, {"Content-Encoding": "identity"}, 100).body == b"x"
