"""Strict reading of our own JSON documents: every key known, every type exact, no key twice, sizes bounded.

A document is what a stranger may have written, so nothing in it is converted silently: ``true`` is no number, ``1.0``
is no count, ``NaN`` is nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

MAX_TEXT = 4096  # characters of any one text
MAX_COUNT = 1 << 60  # larger than any size in bytes that a disk holds


class DocumentError(ValueError):
    """A document that is not of its format; the message names the key, what was expected and what was found."""


def parse(data: bytes, limit: int) -> dict[str, Any]:
    """The object that ``data`` holds; raises DocumentError where it is over ``limit`` bytes or not one JSON object."""
    if len(data) > limit:
        raise DocumentError(f"has {len(data)} bytes, at most {limit} are allowed")
    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except DocumentError:
        raise
    except RecursionError as error:
        raise DocumentError("is nested too deeply") from error
    except ValueError as error:
        raise DocumentError(f"is not JSON in UTF-8: {error}") from error
    if not isinstance(document, dict):
        raise DocumentError(f"expected an object at the top, found {_kind(document)}")
    return document


def dump(document: object) -> bytes:
    """The bytes of a document: sorted keys, indented, UTF-8, one newline at the end; the same for equal documents."""
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def keys(value: object, where: str, wanted: tuple[str, ...]) -> dict[str, Any]:
    """An object with exactly the keys ``wanted``."""
    found = mapping(value, where)
    for key in sorted(found.keys() - set(wanted)):
        raise DocumentError(f"{_join(where, key)}: unknown key; allowed here: {', '.join(wanted)}")
    for key in wanted:
        if key not in found:
            raise DocumentError(f"{_join(where, key)}: missing")
    return found


def mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DocumentError(f"{where or 'top'}: expected an object, found {_kind(value)}")
    return value


def each(value: object, where: str, read: Callable[[object, str], T]) -> dict[str, T]:
    """An object whose values are all read by ``read``."""
    return {key: read(item, _join(where, key)) for key, item in mapping(value, where).items()}


def items(value: object, where: str, read: Callable[[object, str], T]) -> tuple[T, ...]:
    """An array whose items are all read by ``read``."""
    if not isinstance(value, list):
        raise DocumentError(f"{where}: expected an array, found {_kind(value)}")
    return tuple(read(item, f"{where}[{index}]") for index, item in enumerate(value))


def text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise DocumentError(f"{where}: expected a text, found {_kind(value)}")
    if len(value) > MAX_TEXT:
        raise DocumentError(f"{where}: has {len(value)} characters, at most {MAX_TEXT} are allowed")
    if not _printable(value):
        raise DocumentError(f"{where}: holds a control character or half a surrogate pair: {value!r}")
    return value


def count(value: object, where: str) -> int:
    """An integer from 0 to 2^60."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise DocumentError(f"{where}: expected an integer from 0 to 2^60, found {_kind(value)} {str(value)[:40]}")
    return value


def number(value: object, where: str) -> float:
    """A finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DocumentError(f"{where}: expected a number, found {_kind(value)}")
    try:
        converted = float(value)
    except OverflowError as error:
        raise DocumentError(f"{where}: the number is too large") from error
    if not math.isfinite(converted) or converted < 0:
        raise DocumentError(f"{where}: expected a finite number of at least 0, found {value}")
    return converted


def truth(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise DocumentError(f"{where}: expected true or false, found {_kind(value)}")
    return value


def optional(value: object, where: str, read: Callable[[object, str], T]) -> T | None:
    return None if value is None else read(value, where)


def _join(where: str, key: str) -> str:
    name = key if key.isidentifier() else repr(key[:200])
    return f"{where}.{name}" if where else name


def _printable(value: str) -> bool:
    return all(ord(c) >= 32 and ord(c) != 127 and not 0xD800 <= ord(c) <= 0xDFFF for c in value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if not _printable(key):
            raise DocumentError(f"the key {key[:200]!r} holds a control character or half a surrogate pair")
        if key in found:
            raise DocumentError(f"the key {key[:200]!r} is there twice")
        found[key] = value
    return found


def _no_constant(name: str) -> float:
    raise DocumentError(f"{name} is not JSON")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "an array"}
    return names.get(type(value), "an object")
