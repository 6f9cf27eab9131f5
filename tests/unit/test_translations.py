"""Pages in Chinese show the same commands and programs as the English ones, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHINESE = sorted([*ROOT.glob("*.zh-CN.md"), *ROOT.glob("docs/*.zh-CN.md")])
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


def english_of(page: Path) -> Path:
    """Return the page that this one translates."""
    return page.with_name(page.name.replace(".zh-CN.md", ".md"))


def test_the_readme_is_there_in_chinese() -> None:
    assert ROOT / "README.zh-CN.md" in CHINESE


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.name)
def test_commands_and_programs_are_those_of_the_english_page(page: Path) -> None:
    assert BLOCK.findall(page.read_text()) == BLOCK.findall(english_of(page).read_text())


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.name)
def test_a_page_and_its_translation_link_to_each_other_and_to_what_exists(page: Path) -> None:
    english = english_of(page)
    assert page.name in LINK.findall(english.read_text())
    links = LINK.findall(page.read_text())
    assert english.name in links
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []
