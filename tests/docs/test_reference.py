"""The reference page is what the code says, and every page that a page links to is there."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md"])


def test_the_reference_is_what_its_script_makes() -> None:
    spec = spec_from_file_location("reference", DOCS / "reference.py")
    assert spec is not None and spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    made = script.render()
    for name in ("engine.graph_memory", "preheat_request_seconds", "--drain-linger", "preheat bundle merge"):
        assert name in made
    assert script.TARGET.read_text(encoding="utf-8") == made, "run: python docs/reference.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
