"""The page on the API and the OpenAPI document know every status that a request can end with."""

from __future__ import annotations

import re
from pathlib import Path

from serving.http import openapi
from serving.http.answers import CLIENT_GONE, STATUS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
SENT = {str(status) for status in STATUS.values() if status != CLIENT_GONE}


def test_every_status_has_its_row() -> None:
    rows = re.findall(r"^\| (\d{3}) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(rows) >= SENT


def test_every_status_is_in_the_document() -> None:
    assert openapi._ERRORS.keys() >= SENT
