from __future__ import annotations

from pathlib import Path

import pytest

from handlers.document import quoted, read_mapping, shortened
from handlers.errors import ModelError


def read(folder: Path, text: str) -> object:
    path = folder / "model.yaml"
    path.write_text(text)
    return read_mapping(path)


def test_a_mapping_is_read_with_what_it_merges(tmp_path: Path) -> None:
    text = "a: &x {b: 1}\nd: &y {<<: *x, c: 3}\ne: {<<: *y, f: 4}"
    assert read(tmp_path, text) == {"a": {"b": 1}, "d": {"b": 1, "c": 3}, "e": {"b": 1, "c": 3, "f": 4}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: {c: 1,\n  c: 2}", r"the key 'c' is there twice in line 3, column 3"),
        ("a: " + "[" * 2000, "nested too deeply"),
        ("a: 1\nb: 9999-99-99", r"month must be in 1..12 in line 2, column 4"),
        ("a: " + "9" * 5000, r"Exceeds the limit .*line 1, column 4"),
        ("a: '" + "long " * 5000, "not YAML: .* ... "),
        ("? [a]\n: 1", "not YAML: .*unhashable key"),
    ],
)
def test_what_is_wrong_is_one_short_line_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        read(tmp_path, text)
    told = str(raised.value)
    assert told.startswith(f"{tmp_path / 'model.yaml'}: ")
    assert "\n" not in told
    assert len(told) < 1000


def test_long_values_are_shortened() -> None:
    assert shortened("short") == "short"
    assert len(shortened("x" * 10_000)) == 400
    assert shortened("begin" + "x" * 1000 + "end").startswith("begin")
    assert shortened("begin" + "x" * 1000 + "end").endswith("end")
    assert quoted("a") == "'a'"
    assert len(quoted("x" * 1000)) == 80
    assert quoted(1 << 20_000) == "a whole number of 20001 bits"
