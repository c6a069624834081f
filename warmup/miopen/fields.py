"""Many fields of one buffer decoded at once: numbers and names, each given by where it starts and ends.

Every step works on all fields of one length together, so the cost is that of NumPy and not of Python. The results are
exactly those of ``int``, ``float`` and slicing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

_DIGITS = 15  # whole numbers of that many digits, and powers of ten up to there, are exact as 64-bit floats
_DOT = ord(".") - ord("0") + 256  # as it wraps around
_DECIMAL = b"0123456789+-.eE"
_TENS = 10.0 ** np.arange(_DIGITS + 1)


class Names(dict[str, int]):
    """Numbers for texts, in the order of their first appearance."""

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self)
        return number


def decimals(buffer: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The decimal numbers, NaN where a field is none: Python's ``float`` alone would take blanks, ``_`` and ``nan``."""
    values = np.full(len(starts), math.nan)
    for fields, digits in _digits(buffer, starts, ends):
        length = digits.shape[1]
        others = digits > 9
        count = others.sum(axis=1)
        whole = count == 0
        values[fields[whole]] = digits[whole] @ _TENS[length - 1 :: -1]
        for place in range(length if length > 1 else 0):
            rows = (count == 1) & (digits[:, place] == _DOT)
            if rows.any():
                kept = np.delete(digits[rows], place, axis=1)
                values[fields[rows]] = (kept @ _TENS[length - 2 :: -1]) / _TENS[length - 1 - place]
    rest = np.flatnonzero(np.isnan(values))
    values[rest] = [_decimal(buffer[a:b]) for a, b in zip(starts[rest].tolist(), ends[rest].tolist(), strict=True)]
    return values


def integers(buffer: bytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The whole numbers without sign, -1 where a field is none or has more digits than fit into 64 bits."""
    values = np.full(len(starts), -1, np.int64)
    for fields, digits in _digits(buffer, starts, ends):
        whole = (digits <= 9).all(axis=1)
        values[fields[whole]] = digits[whole] @ _TENS[digits.shape[1] - 1 :: -1]
    rest = np.flatnonzero(values < 0)
    values[rest] = [_integer(buffer[a:b]) for a, b in zip(starts[rest].tolist(), ends[rest].tolist(), strict=True)]
    return values


def numbered(buffer: bytes, starts: np.ndarray, ends: np.ndarray, names: Names) -> np.ndarray:
    """The number of each field's text in ``names``, which gets those that it lacks."""
    result = known(buffer, starts, ends, names)
    rest = np.flatnonzero(result < 0)
    texts = [buffer[a:b].decode("latin-1") for a, b in zip(starts[rest].tolist(), ends[rest].tolist(), strict=True)]
    result[rest] = [names[text] for text in texts]
    return result


def known(buffer: bytes, starts: np.ndarray, ends: np.ndarray, names: dict[str, int]) -> np.ndarray:
    """The number of each field's text in ``names``, -1 where it is not there."""
    result = np.full(len(starts), -1, np.int32)
    lengths = ends - starts
    by_length: dict[int, list[str]] = {}
    for name in names:
        by_length.setdefault(len(name), []).append(name)
    for length, alike in by_length.items():
        fields = np.flatnonzero(lengths == length)
        if not length:
            result[fields] = names[""]
        if not length or not len(fields):
            continue
        texts = _texts(buffer, length)[starts[fields]]
        for name in alike:
            result[fields[texts == name.encode("latin-1")]] = names[name]
    return result


def _digits(buffer: bytes, starts: np.ndarray, ends: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each length up to ``_DIGITS``: which fields have it, and their characters less ``0``, one row a field."""
    lengths = ends - starts
    counts = np.bincount(lengths[(lengths > 0) & (lengths <= _DIGITS)])
    for length in np.flatnonzero(counts).tolist():
        fields = np.flatnonzero(lengths == length)
        texts = _texts(buffer, length)[starts[fields]]
        yield fields, texts.view(np.uint8).reshape(-1, length) - np.uint8(ord("0"))


def _texts(buffer: bytes, length: int) -> np.ndarray:
    """Every place of the buffer as a text of this length, without copying."""
    return np.ndarray(len(buffer) - length + 1, f"S{length}", buffer, strides=(1,))


def _decimal(text: bytes) -> float:
    try:
        return math.nan if text.translate(None, _DECIMAL) else float(text)
    except ValueError:
        return math.nan


def _integer(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 20 and int(text) < 2**63 else -1
