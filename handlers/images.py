"""Images out of request bodies: JPEG and PNG only, checked before they are decoded."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from handlers.errors import InvalidInput
from handlers.handler import Payload

FORMATS = ("JPEG", "PNG")
MAX_PIXELS = 40_000_000  # a page of A4 at 600 dpi has 35 million; decoded, this many take 120 MB
_FIELDS = ("data", "body", "image", "file")  # the first two are what TorchServe's handlers look for


def read_image(payload: Payload, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """The image as ``height x width x 3`` of uint8 RGB, turned as its EXIF says, transparent parts white.

    Raises InvalidInput on a body that is not an image, is cut short, or has more pixels than are allowed; the size is
    read from the image's header, so a small file that claims to be huge is never decoded.
    """
    body = image_bytes(payload)
    try:
        image = Image.open(io.BytesIO(body), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise InvalidInput(f"the body ({len(body)} bytes) is no {' or '.join(FORMATS)} image") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InvalidInput(f"the image has far more than the {max_pixels} pixels that are allowed") from error
    except Exception as error:  # Pillow's parsers let through whatever a damaged header makes them stumble over
        raise InvalidInput(f"the image's header is damaged: {error}") from error
    if image.width * image.height > max_pixels:
        size = f"{image.width} x {image.height} pixels"
        raise InvalidInput(f"the image has {size}; at most {max_pixels} in all are allowed")
    try:
        image.load()
        return np.asarray(_to_rgb(ImageOps.exif_transpose(image)))
    except Exception as error:  # as above
        raise InvalidInput(f"the image is damaged or cut short: {error}") from error


def image_bytes(payload: Payload) -> bytes:
    """The body, or the part of a form that holds the image: the only part, or the one named as TorchServe names it."""
    if payload.fields:
        names = [name for name in _FIELDS if name in payload.fields] or list(payload.fields)
        if len(names) > 1:
            raise InvalidInput(
                f"the form has the parts {', '.join(payload.fields)}; send one image, in the part {_FIELDS[0]!r}"
            )
        body = payload.fields[names[0]]
    elif payload.content_type.startswith("multipart/"):
        raise InvalidInput(f"the form has no parts; send the image in the part {_FIELDS[0]!r}")
    else:
        body = payload.body
    if not body:
        raise InvalidInput(f"the body is empty; send a {' or '.join(FORMATS)} image")
    return body


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip instead of scale
        grey = np.asarray(image).astype(np.uint32) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image.convert("RGB")
