"""docs/paper_to_code.md points where it says: files exist, lines hold their anchors."""

import pytest
from relink import DOCUMENT, LINK, ROW, AnchorError, Range, locate, relinked

TEXT = DOCUMENT.read_text()
ROWS = list(ROW.finditer(TEXT))
REMEDY = "run python tests/docs/relink.py"


def test_links_hold_their_anchors() -> None:
    for row in ROWS:
        path = DOCUMENT.parent / row["path"]
        assert path.is_file()
        assert path.name == row["name"].rsplit("/", 1)[-1]
        assert row["shown"] == row["target"]
        lines, span = path.read_text().splitlines(), Range.parse(row["target"])
        assert 1 <= span.first <= span.last <= len(lines)
        inside = lines[span.first - 1 : span.last]
        for anchor in filter(None, (row["first"], row["last"])):
            assert any(anchor in line for line in inside), f"{anchor!r} is elsewhere: {REMEDY}"


def test_lines_are_those_of_the_anchors() -> None:
    """Neither more nor less than what the anchors stand for."""
    stale = [
        old
        for old, new in zip(
            TEXT.splitlines(), relinked(TEXT, DOCUMENT.parent).splitlines(), strict=True
        )
        if old != new
    ]
    assert not stale, f"{REMEDY}: {stale}"


def test_every_link_to_lines_has_an_anchor() -> None:
    assert len(LINK.findall(TEXT)) == len(ROWS) > 50


@pytest.mark.parametrize(
    "what",
    [
        *(f"Eq. ({n})" for n in range(1, 5)),
        *(f"Algorithm {n}" for n in range(1, 5)),
        *(f"Footnote {n}" for n in range(1, 5)),
        "Table 1",
        "Deviations",
    ],
)
def test_everything_in_the_paper_is_there(what: str) -> None:
    assert what in TEXT


def test_anchors_must_be_unambiguous() -> None:
    with pytest.raises(AnchorError, match="2 lines"):
        locate("a = 1\nb = a\na = 1\n", "a = 1")
    with pytest.raises(AnchorError, match="0 lines"):
        locate("a = 1\n", "b")
    with pytest.raises(AnchorError, match="does not occur after"):
        locate("a = 1\nb = 2\n", "b", "a")
