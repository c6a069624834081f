from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from handlers.errors import InvalidInput
from handlers.handler import Payload
from handlers.images import image_bytes, read_image

Encode = Callable[..., bytes]


@pytest.fixture
def photo() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8)


def test_png_is_read_exactly(encode: Encode, photo: np.ndarray) -> None:
    assert np.array_equal(read_image(Payload(encode(photo))), photo)


def test_jpeg_is_read_closely(encode: Encode) -> None:
    smooth = np.broadcast_to(np.arange(64, dtype=np.uint8)[:, None, None] * 3, (64, 48, 3)).copy()
    found = read_image(Payload(encode(smooth, "JPEG", quality=95), "image/jpeg")).astype(int)
    assert found.shape == (64, 48, 3)
    assert abs(found - smooth).max() < 8


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_becomes_rgb(encode: Encode, photo: np.ndarray, mode: str) -> None:
    format = "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"
    found = read_image(Payload(encode(Image.fromarray(photo).convert(mode), format)))
    assert found.shape == photo.shape
    assert found.dtype == np.uint8


def test_sixteen_bits_of_grey_are_scaled(encode: Encode) -> None:
    grey = np.array([[0, 0x7FFF, 0xFFFF]], np.uint16)
    assert read_image(Payload(encode(grey)))[..., 0].tolist() == [[0, 127, 255]]


def test_transparent_parts_are_white(encode: Encode) -> None:
    clear = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    clear.putpixel((1, 0), (10, 20, 30, 255))
    assert read_image(Payload(encode(clear))).tolist() == [[[255, 255, 255], [10, 20, 30]]]


def test_the_camera_was_turned(encode: Encode, photo: np.ndarray) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # EXIF 2.32, 4.6.4.A: the first row is the right side
    found = read_image(Payload(encode(photo, "PNG", exif=exif)))
    assert np.array_equal(found, np.rot90(photo, -1))


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_an_image_cut_short_is_refused(encode: Encode, photo: np.ndarray, format: str) -> None:
    body = encode(photo, format)
    for length in (len(body) // 2, len(body) * 3 // 4, 30):
        with pytest.raises(InvalidInput, match=r"damaged|cut short|is no JPEG"):
            read_image(Payload(body[:length]))


@pytest.mark.parametrize("body", [b"hello", b"\x00" * 100, b"%PDF-1.7", b"<svg/>"])
def test_what_is_no_image_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match=rf"the body \({len(body)} bytes\) is no JPEG or PNG image"):
        read_image(Payload(body))


@pytest.mark.parametrize("format", ["GIF", "BMP", "TIFF", "WEBP"])
def test_other_formats_are_refused(encode: Encode, photo: np.ndarray, format: str) -> None:
    with pytest.raises(InvalidInput, match="is no JPEG or PNG image"):
        read_image(Payload(encode(photo, format)))


def bomb(width: int, height: int) -> bytes:
    """A PNG of a hundred bytes whose header claims any size (PNG specification, 5.3 and 11.2.2)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [7_000, 10_000, 50_000, 2_000_000_000])
def test_a_small_file_that_claims_to_be_huge_is_refused(side: int) -> None:
    with pytest.raises(InvalidInput, match=r"40000000"):
        read_image(Payload(bomb(side, side)))


def test_the_limit_is_the_callers(encode: Encode, photo: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match="60 x 40 pixels; at most 2000 in all"):
        read_image(Payload(encode(photo)), max_pixels=2000)
    assert read_image(Payload(encode(photo)), max_pixels=2400).shape == (40, 60, 3)


def test_no_side_may_be_zero() -> None:
    with pytest.raises(InvalidInput):
        read_image(Payload(bomb(0, 10)))


@given(data=st.data())
def test_any_damage_is_invalid_input_or_an_image(data: st.DataObject) -> None:
    body = bytearray(_PNG if data.draw(st.booleans()) else _JPEG)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read_image(Payload(bytes(body)), max_pixels=100_000)
    except InvalidInput:
        return
    assert found.ndim == 3
    assert found.shape[2] == 3


@pytest.mark.parametrize("name", ["data", "body", "image", "file", "anything"])
def test_a_form_with_one_part(name: str) -> None:
    assert image_bytes(Payload(b"", "multipart/form-data; boundary=x", {name: b"bytes"})) == b"bytes"


def test_the_part_that_torchserve_would_take_wins() -> None:
    assert image_bytes(Payload(b"", "multipart/form-data", {"note": b"n", "data": b"bytes"})) == b"bytes"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"a": b"1", "b": b"2"}, "has the parts a, b; send one image, in the part 'data'"),
        ({"data": b"1", "body": b"2"}, "has the parts data, body"),
        ({}, "has no parts"),
        ({"data": b""}, "is empty"),
    ],
)
def test_a_form_that_is_wrong(fields: dict[str, bytes], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        image_bytes(Payload(b"", "multipart/form-data; boundary=x", fields))


def test_an_empty_body() -> None:
    with pytest.raises(InvalidInput, match="the body is empty; send a JPEG or PNG image"):
        read_image(Payload(b""))


def _encoded(format: str) -> bytes:
    import io

    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (16, 24, 3)).astype(np.uint8)).save(file, format)
    return file.getvalue()


_PNG, _JPEG = _encoded("PNG"), _encoded("JPEG")
