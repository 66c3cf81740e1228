"""Links that leave docs/ lead, on the site, to copies of what they point at.

On a forge `../src/natural_langevin/random.py#L103-L110` is the file itself. The site has no
repository to link to, so every such file comes along: sources as pages with numbered lines under
repository/, everything else as it is. CONTRIBUTING.md and CHANGELOG.md become pages of the site.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Pages that live in the repository's root, by their place on the site.
PAGES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
LINK = re.compile(r"\]\((?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")
SOURCES = {".md", ".py", ".toml", ".tex", ".yml"}


def place(source: str, target: str) -> str | None:
    """Where on the site a link leads that the page ``source`` (of the site) makes; None: stays.

    >>> place("paper_to_code.md", "../src/natural_langevin/dynamics/overdamped.py")
    'repository/src/natural_langevin/dynamics/overdamped.py.html'
    >>> place("contributing.md", "docs/layers.md"), place("trust.md", "../CHANGELOG.md")
    ('layers.md', 'changelog.md')
    >>> place("trust.md", "layers.md")
    """
    origin = ROOT / PAGES[source] if source in PAGES else DOCS / source
    path = Path(os.path.normpath(origin.parent / target))
    if not path.is_file() or not path.is_relative_to(ROOT):
        return None
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix() if source in PAGES else None
    inside = path.relative_to(ROOT).as_posix()
    for page, file in PAGES.items():
        if inside == file:
            return page
    return f"repository/{inside}" + (".html" if path.suffix in SOURCES else "")


def rewritten(markdown: str, source: str) -> str:
    """The page with its leaving links led to their copies; lines as the copies number them."""

    def replace(match: re.Match[str]) -> str:
        found = place(source, match["path"])
        if found is None:
            return match[0]
        anchor = re.sub(r"^#L(\d+)(-L\d+)?$", r"#L-\1", match["anchor"] or "")
        return f"]({posixpath.relpath(found, posixpath.dirname(source) or '.')}{anchor})"

    return LINK.sub(replace, markdown)


def numbered(path: Path) -> str:
    """A source file as a page in which line 12 has the anchor L-12."""
    title = path.relative_to(ROOT).as_posix()
    style = HtmlFormatter(
        full=True, title=title, linenos="inline", linespans="L", cssclass="source"
    )
    return highlight(path.read_text(encoding="utf-8"), get_lexer_for_filename(path.name), style)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, name in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    wanted: dict[str, Path] = {}
    for file in files.documentation_pages():
        if not file.src_uri.endswith(".md"):
            continue
        for match in LINK.finditer(file.content_string):
            found = place(file.src_uri, match["path"])
            if found is not None and found.startswith("repository/"):
                inside = found.removeprefix("repository/")
                path = ROOT / inside
                wanted[found] = path if path.is_file() else path.with_suffix("")
    for uri, path in sorted(wanted.items()):
        if uri.endswith(".html"):
            files.append(File.generated(config, uri, content=numbered(path)))
        else:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    return rewritten(markdown, page.file.src_uri)
