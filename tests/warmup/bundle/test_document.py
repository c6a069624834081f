from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warmup.bundle import document
from warmup.bundle.document import DocumentError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not JSON"),
        (b"[1]", "expected an object at the top, found an array"),
        (b'{"a": 1, "a": 2}', "'a' is there twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": Infinity}', "Infinity is not JSON"),
        (b'{"a": "\xff"}', "not JSON in UTF-8"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"a\\u0000": 1}', "control character"),
        (b'{"' + b"x" * 200 + b'": 1}', "has 207 bytes, at most 100 are allowed"),
    ],
)
def test_refuses_what_is_no_document(data: bytes, said: str) -> None:
    with pytest.raises(DocumentError, match=said):
        document.parse(data, 100 if said.startswith("has") else 1 << 20)


@pytest.mark.parametrize("value", [True, 1.0, -1, (1 << 60) + 1, "1", None])
def test_a_count_is_an_integer_in_range(value: object) -> None:
    with pytest.raises(DocumentError, match=r"^files\.a\.size: expected an integer from 0"):
        document.count(value, "files.a.size")


@pytest.mark.parametrize("value", [True, -0.5, float("inf"), 10**400, "1", None])
def test_a_number_is_finite_and_not_negative(value: object) -> None:
    with pytest.raises(DocumentError, match=r"^w: "):
        document.number(value, "w")


@pytest.mark.parametrize("value", ["a\nb", "\x7f", "\ud800", "x" * 4097, 3, None])
def test_a_text_is_printable_and_bounded(value: object) -> None:
    with pytest.raises(DocumentError, match=r"^name: "):
        document.text(value, "name")


def test_names_unknown_and_missing_keys_with_what_is_allowed() -> None:
    with pytest.raises(DocumentError, match=r"^top\.colour: unknown key; allowed here: size, name"):
        document.keys({"size": 1, "name": "x", "colour": 2}, "top", ("size", "name"))
    with pytest.raises(DocumentError, match=r"^top\.name: missing"):
        document.keys({"size": 1}, "top", ("size", "name"))


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(st.characters(min_codepoint=32, max_codepoint=126)), JSON))
def test_what_is_dumped_is_parsed_back(value: dict[str, object]) -> None:
    data = document.dump(value)
    try:
        assert document.parse(data, len(data)) == json.loads(json.dumps(value))
    except DocumentError as error:  # keys of inner objects may be unprintable
        assert "control character" in str(error)
