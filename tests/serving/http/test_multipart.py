"""Bodies of /predictions."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.errors import InvalidInput
from serving.http.multipart import payload


def form(**files: object) -> tuple[bytes, str]:
    """A form as a real client writes it."""
    sent = httpx.Request("POST", "http://localhost/", files=files)  # type: ignore[arg-type]
    return sent.read(), sent.headers["content-type"]


@pytest.mark.parametrize("content_type", ["image/jpeg", "application/json; charset=utf-8", "text/plain"])
def test_other_bodies_pass_as_they_are(content_type: str) -> None:
    got = payload(b"\xff\xd8", content_type)
    assert (got.body, got.content_type, got.fields) == (b"\xff\xd8", content_type, {})


def test_a_body_without_a_type_is_bytes() -> None:
    assert payload(b"x", None).content_type == "application/octet-stream"


@pytest.mark.parametrize("name", ["data", "body", "picture"])
def test_the_only_field_is_the_body(name: str) -> None:
    image = bytes(range(256)) * 40 + b"\r\n--\r\n"
    got = payload(*form(**{name: ("a.png", image, "image/png")}))
    assert got.body == image
    assert got.content_type == "image/png"
    assert got.fields == {name: image}


def test_data_is_the_body_among_several_fields() -> None:
    got = payload(*form(threshold=(None, b"0.5"), data=("a", b"image")))
    assert got.body == b"image"
    assert got.fields == {"threshold": b"0.5", "data": b"image"}


def test_several_other_fields_leave_the_choice_to_the_handler() -> None:
    got = payload(*form(left=("a", b"1"), right=("b", b"2")))
    assert got.body == b""
    assert got.fields == {"left": b"1", "right": b"2"}


def test_an_empty_field_is_empty() -> None:
    assert payload(*form(data=("a", b""))).fields == {"data": b""}


HEAD = b'--b\r\nContent-Disposition: form-data; name="data"\r\n\r\n'


@pytest.mark.parametrize(
    ("body", "content_type", "says"),
    [
        (b"", "multipart/form-data", "boundary"),
        (b"", "multipart/form-data; boundary=", "boundary"),
        (b"", "multipart/form-data; boundary=b", "multipart form"),
        (b"plain", "multipart/form-data; boundary=b", "multipart form"),
        (HEAD, "multipart/form-data; boundary=b", "multipart form"),
        (HEAD + b"abc", "multipart/form-data; boundary=b", "multipart form"),
        (HEAD + b"abc\r\n--b", "multipart/form-data; boundary=b", "multipart form"),
        (b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n", "multipart/form-data; boundary=b", "name"),
        (b"--b\r\nContent-Type: a/b\r\n\r\nx\r\n--b--\r\n", "multipart/form-data; boundary=b", "multipart form"),
        (HEAD + b"x\r\n" + HEAD + b"y\r\n--b--\r\n", "multipart/form-data; boundary=b", "'data' is given twice"),
    ],
)
def test_a_broken_form_is_told_so(body: bytes, content_type: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        payload(body, content_type)


def test_too_many_parts_are_refused() -> None:
    with pytest.raises(InvalidInput, match="multipart form"):
        payload(*form(**{f"f{index}": ("a", b"") for index in range(200)}))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_form_is_taken_apart_or_refused(data: st.DataObject) -> None:
    body = bytearray(HEAD + b"abc\r\n" + HEAD.replace(b"data", b"more") + b"y\r\n--b--\r\n")
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    content_type = "multipart/form-data; boundary=" + data.draw(st.just("b") | st.text(max_size=5))
    try:
        got = payload(bytes(body), content_type)
    except InvalidInput as refusal:
        assert str(refusal).startswith("multipart form")
    else:
        assert all(isinstance(value, bytes) for value in got.fields.values())


@given(st.binary(max_size=300), st.text(max_size=30) | st.just("multipart/form-data; boundary=b"))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_taken_or_refused(body: bytes, content_type: str) -> None:
    try:
        payload(body, content_type)
    except InvalidInput as refusal:
        assert str(refusal)
