"""Everything a reader may copy from README.md and docs/ runs, or at least parses."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
import torch
import typer
from torch.utils.data import DataLoader, TensorDataset

from natural_langevin import likelihoods
from natural_langevin.cli.app import app
from natural_langevin.optim import NaturalLangevin
from short_recipe import shorten

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[tuple[str, int]]:
    """The code blocks of a page, and the line on which each begins."""
    text = page.read_text()
    return [
        (match[2], text.count("\n", 0, match.start(2)) + 1)
        for match in BLOCK.finditer(text)
        if match[1] in languages
    ]


def commands() -> list[tuple[Path, list[str]]]:
    """Every command line of the pages' shell blocks, without comments."""
    found = []
    for page in PAGES:
        for code, _ in blocks(page, "sh", "bash", "shell", "console"):
            for line in code.replace("\\\n", " ").splitlines():
                words = shlex.split(line.removeprefix("$ "), comments=True)
                if words:
                    found.append((page, words))
    return found


def versions(diff: str) -> tuple[str, str]:
    """The code before and after a change.

    >>> versions(" a\\n-b\\n+c\\n")
    ('a\\nb\\n', 'a\\nc\\n')
    """
    lines = diff.splitlines()
    old, new = ([line[1:] for line in lines if line[:1] != drop] for drop in "+-")
    return "\n".join(old) + "\n", "\n".join(new) + "\n"


def printed(page: Path) -> dict[str, str]:
    """What a page says that its blocks print: the text block that follows, by the code."""
    follows = re.compile(r"^```python\n((?:(?!^```).)*?)^```\n\n```text\n(.*?)^```$", re.M | re.S)
    return {match[1]: match[2] for match in follows.finditer(page.read_text())}


def like(said: str, shown: str, close: bool) -> bool:
    """The same words; ``close``: and the same numbers, up to 0.05 or a factor of two, since another
    machine has other bits.

    >>> like("NLL 0.083 of 360", "NLL 0.091 of 360", True), like("NLL 0.2", "NLL 0.8", True)
    (True, False)
    >>> like("a 1", "b 1", False)
    False
    """
    number = re.compile(r"\d+(?:\.\d+)?")
    words = [" ".join(number.sub("#", text).split()) for text in (said, shown)]
    if words[0] != words[1]:
        return False
    pairs = zip(*(map(float, number.findall(text)) for text in (said, shown)), strict=True)
    return not close or all(abs(a - b) <= max(0.05, b / 2) for a, b in pairs)


PYTHON = [page for page in PAGES if blocks(page, "python")]
# Advice of the frameworks about workers and deprecated names, which is not ours to follow.
FRAMEWORKS = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("UserWarning:lightning", "UserWarning:torch.utils.data", "FutureWarning:lightning",
                 "DeprecationWarning")
]  # fmt: skip
RUN = [
    pytest.param(page, whole, marks=marks, id=name(page) + ", whole" * whole)
    for page in PYTHON
    for whole in (False, True)
    for marks in [
        (FRAMEWORKS if page.name == "training_loop.md" else [])
        + ([pytest.mark.thorough] if whole else [])
    ]
]
SHELL = commands()
CLI = ("natural-langevin", "natural_langevin.cli")  # the second behind torchrun -m
OURS = [words[words.index(cli) + 1 :] for _, words in SHELL for cli in CLI if cli in words]
MAKE = [words[1:] for _, words in SHELL if words[0] == "make"]


@pytest.mark.parametrize(("page", "whole"), RUN)
def test_python_blocks_run(
    page: Path, whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """In order and in one namespace per page, from an empty folder, without a word of warning.

    Runs of open length are short, and as long as a reader's in `make test-thorough`."""
    monkeypatch.chdir(tmp_path)
    if not whole:
        shorten(monkeypatch)
    namespace: dict[str, object] = {"__name__": "__main__"}
    shown = printed(page)
    for code, line in blocks(page, "python"):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            # Blank lines in front make a traceback name the page's own line.
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
        if code in shown:
            assert like(said.getvalue(), shown[code], close=whole)
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == []
    assert list(tmp_path.iterdir()) == []


def test_the_readmes_diff_runs_before_and_after() -> None:
    """From SGD to a sampler by two lines: both versions train the same network."""
    ((diff, _),) = blocks(ROOT / "README.md", "diff")
    assert sum(line[:1] == "+" for line in diff.splitlines()) == 2
    torch.manual_seed(0)
    x = torch.rand(500, 2)
    names = {
        "x": x, "y": (x.sum(1) > 1).long(), "torch": torch, "F": torch.nn.functional,
        "DataLoader": DataLoader, "TensorDataset": TensorDataset, "likelihoods": likelihoods,
        "NaturalLangevin": NaturalLangevin,
    }  # fmt: skip
    for code in versions(diff):
        model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        namespace = {**names, "model": model}
        before = model[0].weight.detach().clone()
        exec(code, namespace)
        assert not torch.equal(before, model[0].weight)
    assert namespace["collector"].posterior().draws == 6


@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_commands_parse(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The subcommand exists and takes these options and values; nothing is run."""
    group = typer.main.get_command(app)
    try:
        context = group.make_context("natural-langevin", list(words))
    except typer.Exit:  # --version and --help end here
        assert capsys.readouterr().out
        return
    rest = [*getattr(context, "_protected_args", []), *context.args]
    subcommand, command, arguments = group.resolve_command(context, rest)
    assert command is not None
    try:
        parsed = command.make_context(subcommand, arguments, parent=context)
    except typer.Exit:
        assert capsys.readouterr().out
        return
    assert parsed.args == []


def test_help_of_every_subcommand_has_examples() -> None:
    """The README sends readers there."""
    for subcommand, command in typer.main.get_command(app).commands.items():
        assert f"natural-langevin {subcommand}" in (command.help or "")


def test_a_wrong_option_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        test_commands_parse(["reproduce", "--no-such-option"], None)


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert MAKE
    assert {word for words in MAKE for word in words if "=" not in word} <= targets


def test_pages_hold_examples() -> None:
    """A change of fences must not make the tests above pass by finding nothing."""
    assert {name(page) for page in PYTHON} >= {
        "README.md", "docs/scaling.md", "docs/samplers.md", "docs/trust.md",
    }  # fmt: skip
    assert {words[0] for words in OURS} >= {"reproduce", "report"}


def test_relative_links_lead_somewhere() -> None:
    links = [(page, target) for page in PAGES for target in LINK.findall(page.read_text())]
    for page, target in links:
        if "://" not in target:
            assert (page.parent / target).exists(), f"{name(page)} links to {target}"
