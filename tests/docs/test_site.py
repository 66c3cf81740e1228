"""The documentation site: built strictly, complete, every link leads somewhere, nothing outside."""

from __future__ import annotations

import doctest
import functools
import http.server
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

import chrome
import natural_langevin
from natural_langevin import likelihoods, preconditioners, priors, schedules

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / "docs" / "hooks"
OUTSIDE = re.compile(r"^(?:[a-z]+:)?//")


def mkdocs(*options: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *options], cwd=cwd, capture_output=True,
        text=True, timeout=300, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip


class Links(HTMLParser):
    """The anchors of a page, where it links to, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attributes}
        self.anchors |= {found[key] for key in ("id", "name") if key in found}
        if tag == "a" and "href" in found:
            self.targets.append(found["href"])
        if "src" in found:
            self.loaded.append(found["src"])
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = mkdocs("--strict", "--site-dir", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {path: Links(path) for path in sorted(site.rglob("*.html"))}


def test_every_page_of_docs_is_there(site: Path) -> None:
    sources = [p for kind in ("md", "ipynb") for p in (ROOT / "docs").rglob(f"*.{kind}")]
    assert len(sources) > 25
    for source in sources:
        assert (site / source.relative_to(ROOT / "docs")).with_suffix(".html").exists()


def test_links_and_anchors_lead_somewhere(site: Path, pages: dict[Path, Links]) -> None:
    """Inside the site: also into the numbered lines of source files, which mkdocs cannot check."""
    checked = 0
    for path, page in pages.items():
        if path.name == "404.html":  # served for any address, it links from the root
            continue
        for link in page.targets:
            if OUTSIDE.match(link) or link.startswith(("mailto:", "javascript:")):
                continue
            address, anchor = urldefrag(unquote(link))
            target = (path.parent / address).resolve() if address else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.relative_to(site)} links to {link}"
            if anchor and target in pages and not anchor.startswith("__"):
                assert anchor in pages[target].anchors, f"{path.relative_to(site)}: {link}"
                checked += 1
    assert checked > 500


def test_sources_come_along_with_numbered_lines(site: Path, pages: dict[Path, Links]) -> None:
    source = site / "repository" / "src" / "natural_langevin" / "recipe" / "settings.py.html"
    lines = (ROOT / "src/natural_langevin/recipe/settings.py").read_text().count("\n")
    assert {f"L-{n}" for n in range(1, lines + 1)} <= pages[source].anchors
    results = "results/table1-h200.json"
    assert (site / "repository" / results).read_bytes() == (ROOT / results).read_bytes()


def test_nothing_is_loaded_from_outside(site: Path, pages: dict[Path, Links]) -> None:
    for path, page in pages.items():
        assert [u for u in page.loaded if OUTSIDE.match(u)] == [], path.relative_to(site)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(?:https?:)?//", sheet.read_text(errors="replace"))


def public(module: ModuleType) -> list[str]:
    """The public classes that a module defines (schedules are classes too)."""
    return [
        f"{module.__name__}.{name}"
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__.startswith(module.__name__)
        if not name.startswith("_") and name != "FisherPreconditioner"
    ]


def test_the_reference_has_every_public_name(pages: dict[Path, Links], site: Path) -> None:
    anchors = set().union(*(p.anchors for path, p in pages.items() if path.parent == site / "api"))
    names = [
        f"natural_langevin.{name}"
        for name in natural_langevin.__all__
        if inspect.isclass(getattr(natural_langevin, name))
    ]
    for module in (likelihoods, priors, preconditioners, schedules):
        names += public(module)
    names += ["natural_langevin.metrics.nll", "natural_langevin.data.dataset.digits"]
    names += ["natural_langevin.models.mlp", "natural_langevin.statistics.register_rule"]
    names += [f"natural_langevin.distributed.{name}" for name in ("Layout", "Group", "join.join")]
    for framework in ("lightning", "transformers"):
        names += [f"natural_langevin.integrations.{framework}.CollectPosterior"]
    assert len(names) > 25
    assert [name for name in names if name not in anchors] == []


@pytest.mark.parametrize("name", ["leaving", "offline", "doctests"])
def test_examples_of_the_hooks(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, HOOKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def test_a_broken_link_or_anchor_would_be_noticed(tmp_path: Path) -> None:
    """With the site's own settings, and none of its plugins."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\nplugins: []\nhooks: []\nnav: [index.md]\n"
        "theme: {name: mkdocs}\ndocs_dir: docs\nextra_css: []\n"
    )
    text = "# Title\n\n[there](#title) [nowhere](missing.md) [no such place](#elsewhere)\n"
    (tmp_path / "docs" / "index.md").write_text(text)
    done = mkdocs("--site-dir", str(tmp_path / "site"), cwd=tmp_path)
    assert done.returncode != 0
    assert "missing.md" in done.stderr
    assert "#elsewhere" in done.stderr
    assert "#title" not in done.stderr


class Silent(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and writes no log."""

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site behind a server: from disk a browser would not let its search run."""
    handler = functools.partial(Silent, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chrome.started(tmp_path_factory.mktemp("profile")) as found:
        yield found


#: What a page loads and cannot show; what is wider than the screen and does not scroll by itself.
BROKEN = """
return [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)
"""
FEW = ("index", "evidence", "api/sampler")


def faults(browser: Any, url: str, size: str, scheme: str = "light") -> list[object]:
    """What is wrong with a page at this width: overflow, pictures, messages of the browser."""
    chrome.visit(browser, url, size, scheme)
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    found: list[object] = [f"{wide} pixels"] if wide > chrome.SIZES[size][0] else []
    found += browser.execute_script(BROKEN)
    found += [entry["message"] for entry in browser.get_log("browser")]
    return found + [u for u in chrome.requests(browser) if not u.startswith(url.rsplit(":", 1)[0])]


@pytest.mark.parametrize("size", chrome.SIZES)
def test_pages_fit_a_phone_and_a_desk(browser: Any, address: str, size: str) -> None:
    assert {
        page: found for page in FEW if (found := faults(browser, f"{address}/{page}.html", size))
    } == {}


@pytest.mark.thorough
@pytest.mark.parametrize("size", chrome.SIZES)
def test_all_pages_fit(browser: Any, address: str, site: Path, size: str) -> None:
    pages = [p.relative_to(site) for p in site.rglob("*.html") if "repository" not in p.parts]
    assert len(pages) > 35
    bad = {str(p): faults(browser, f"{address}/{p}", size) for p in pages if p.name != "404.html"}
    assert {page: found for page, found in bad.items() if found} == {}


def test_search_dark_mode_and_copying(browser: Any, address: str) -> None:
    run = browser.execute_script
    background = "return getComputedStyle(document.body).backgroundColor"
    seen = []
    for scheme in ("dark", "light"):  # as the system says, until somebody chooses
        browser.get("about:blank")
        browser.execute_cdp_cmd(
            "Storage.clearDataForOrigin", {"origin": address, "storageTypes": "all"}
        )
        assert faults(browser, f"{address}/index.html", "desk", scheme) == []
        seen.append(run(background))
    assert seen[0] != seen[1]
    assert run("return document.querySelectorAll('pre .md-clipboard, .md-code__nav').length") > 0
    run("""const q = document.querySelector('input[data-md-component=search-query]');
    q.focus(); q.value = 'burn-in'; q.dispatchEvent(new Event('input', {bubbles: true}));
    q.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}))""")
    found = 0
    for _ in range(100):
        found = run("return document.querySelectorAll('.md-search-result__item').length")
        if found:
            break
        time.sleep(0.1)
    assert found > 0
