"""Examples in the README and the docs are run and compared."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples(page: Path) -> None:
    failures, _ = doctest.testfile(str(page), module_relative=False, optionflags=FLAGS)
    assert failures == 0


def test_pages_have_examples() -> None:
    parser = doctest.DocTestParser()
    counts = {p.name: len(parser.get_examples(p.read_text(encoding="utf-8"))) for p in PAGES}
    assert counts["README.md"] > 0
    assert counts["gradients.md"] > 0
