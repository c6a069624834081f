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
from serving.http.answers import BodyTooLarge
from serving.http.multipart import BODY_FIELDS

_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
_ANY = "application/octet-stream"


def payload(entries: Mapping[str, Any], headers: Mapping[str, Any], limit: int) -> Payload:
    """What a handler gets of one request.

    Raises BodyTooLarge where all entries together have more than ``limit`` bytes, InvalidInput on a form without parts.
    """
    fields = {name: _bytes(value) for name, value in entries.items()}
    size = sum(map(len, fields.values()))
    if size > limit:
        raise BodyTooLarge(f"the body has {size} bytes, at most {limit} are allowed")
    kind = _content_type(headers)
    if not kind.lower().startswith(_FORMS):
        return Payload(fields.get("body", b""), kind)
    if not fields:
        raise InvalidInput("multipart form: it has no parts, or is cut short")
    main = next((name for name in BODY_FIELDS if name in fields), next(iter(fields)) if len(fields) == 1 else None)
    if main is None:
        return Payload(b"", kind, fields)
    return Payload(fields[main], headers.get(main, {}).get("content-type") or _ANY, fields)


def _content_type(headers: Mapping[str, Any]) -> str:
    """The request's own; names of headers come as the client wrote them."""
    for name, value in headers.items():
        if isinstance(value, str) and name.lower() == "content-type":
            return value
    return _ANY


def _bytes(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    return value.encode() if isinstance(value, str) else orjson.dumps(value)
