"""Links, purpose lines and commands of the documentation."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "bench/results").glob("*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "docker/README.md",
    ]
)
LINK = re.compile(r"\]\((?!https?://)([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_listed_in_the_index() -> None:
    index = ROOT / "docs/README.md"
    links = LINK.findall(index.read_text(encoding="utf-8"))
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in links}
    assert {page for page in (ROOT / "docs").rglob("*.md") if page != index} <= listed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_title_and_a_purpose_of_one_line_come_first(page: Path) -> None:
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line]
    assert lines[0].startswith("# ")
    assert lines[1][0] not in "#|`!<-"
