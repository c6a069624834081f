"""Bodies of ``/predictions``: raw, JSON, or a multipart form (RFC 7578) taken apart into its fields."""

from __future__ import annotations

from multipart import MultipartError, PushMultipartParser, parse_options_header

from handlers.errors import InvalidInput
from handlers.handler import Payload

# The field names that TorchServe's own handlers look for, in their order.
BODY_FIELDS = ("data", "body")
_MOST_PARTS = 128


def payload(body: bytes, content_type: str | None) -> Payload:
    """What a handler gets of a request body.

    Of a multipart form that is every field by name, and as ``body`` the one that carries the data: the field
    ``data`` or ``body``, or the only one; empty where there are several others. Any other body is passed on as it is.
    Raises InvalidInput on a form that is cut short or malformed, or that names a field twice.
    """
    if content_type is None:
        return Payload(body)
    kind, options = parse_options_header(content_type)
    if kind != "multipart/form-data":
        return Payload(body, content_type)
    boundary = options.get("boundary")
    if not boundary:
        raise InvalidInput("multipart form: Content-Type must carry a boundary, as in multipart/form-data; boundary=x")
    try:
        fields, types = _fields(body, boundary)
    except (MultipartError, UnicodeError) as error:
        raise InvalidInput(f"multipart form: {error}") from None
    main = next((name for name in BODY_FIELDS if name in fields), next(iter(fields)) if len(fields) == 1 else None)
    if main is None:
        return Payload(b"", content_type, fields)
    return Payload(fields[main], types[main], fields)


def _fields(body: bytes, boundary: str) -> tuple[dict[str, bytes], dict[str, str]]:
    chunks: dict[str, list[bytes]] = {}
    types: dict[str, str] = {}
    name = ""
    with PushMultipartParser(boundary, len(body), max_segment_count=_MOST_PARTS, strict=True) as parser:
        for event in (*parser.parse(body), *parser.parse(b"")):
            if event is None:  # the part is complete
                continue
            if isinstance(event, (bytes, bytearray)):
                chunks[name].append(bytes(event))
                continue
            name = event.name or ""
            if not name:
                raise InvalidInput("multipart form: every part needs a name in Content-Disposition: form-data")
            if name in chunks:
                raise InvalidInput(f"multipart form: field {name[:100]!r} is given twice")
            chunks[name] = []
            types[name] = event.content_type or "application/octet-stream"
    return {name: b"".join(parts) for name, parts in chunks.items()}, types
