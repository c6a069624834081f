"""A request as TorchServe's worker hands it over, turned back into the body that the client sent.

TorchServe takes a body apart before a handler sees it (ts/protocol/otf_message_handler.py, ts/service.py, 0.12): a form
becomes one entry for each field, any other body the entry ``body``; JSON is parsed and text decoded unless
``decode_input_request=false``. Headers come as one mapping that also has, for each entry, its content type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from handlers.errors import InvalidInput
from handlers.handler import Payload
from serving.http.answers import BodyTooLarge, EncodingRefused
from serving.http.multipart import BODY_FIELDS

_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
_ANY = "application/octet-stream"


def payload(entries: Mapping[str, Any], headers: Mapping[str, Any], limit: int) -> Payload:
    """What a handler gets of one request.

    Raises BodyTooLarge where all entries together have more than ``limit`` bytes, EncodingRefused on a compressed body,
    InvalidInput on a form without parts.
    """
    encoding = _header(headers, "content-encoding")
    if encoding not in ("", "identity"):
        raise EncodingRefused(f"content-encoding {encoding!r} is not supported; send the body as it is")
    fields = {name: _bytes(value) for name, value in entries.items()}
    size = sum(map(len, fields.values()))
    if size > limit:
        raise BodyTooLarge(f"the body has {size} bytes, at most {limit} are allowed")
    kind = _header(headers, "content-type") or _ANY
    if not kind.lower().startswith(_FORMS):
        return Payload(fields.get("body", b""), kind)
    if not fields:
        raise InvalidInput("multipart form: it has no parts, or is cut short")
    main = next((name for name in BODY_FIELDS if name in fields), next(iter(fields)) if len(fields) == 1 else None)
    if main is None:
        return Payload(b"", kind, fields)
    of_part = headers.get(main)  # or a header of the request that happens to have the field's name
    kind = of_part.get("content-type") if isinstance(of_part, Mapping) else None
    return Payload(fields[main], kind or _ANY, fields)


def _header(headers: Mapping[str, Any], wanted: str) -> str:
    """A header of the request's own, empty where it has none; names come as the client wrote them."""
    for name, value in headers.items():
        if isinstance(value, str) and name.lower() == wanted:
            return value
    return ""


def _bytes(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    return value.encode() if isinstance(value, str) else orjson.dumps(value)
