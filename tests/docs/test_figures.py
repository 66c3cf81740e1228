"""Every number in README and guides has a source: results/, the code, or the page's own example."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import sklearn.datasets
from torch import nn

from lab import claims
from lab.samplers import problems
from natural_langevin import data, likelihoods
from natural_langevin._internal import threads
from natural_langevin.diagnostics import limits
from natural_langevin.evidence import marginal
from natural_langevin.metrics import summary
from natural_langevin.recipe import open_settings
from natural_langevin.recipe.settings import Settings

ROOT = Path(__file__).parents[2]
GUIDES = [
    "README.md",
    *(f"docs/{name}.md" for name in (
        "index", "tutorial", "why", "glossary", "training_loop", "scale", "tabular", "samplers",
        "trust", "defaults", "deployment", "how_long", "learning_coefficients",
        "marginal_likelihoods",
    )),
    *(f"docs/recipes/{name}.md" for name in (
        "regression", "classification", "fine_tuning", "active_learning", "out_of_distribution",
    )),
]  # fmt: skip
NUMBER = re.compile(r"(?<![\w.#^/₀-₉-])\d[\d,]*(?:\.\d+)?(?![\w%]*\.\w)")
#: Parts of a page that are no prose: code, links' targets, comments, tables that are generated.
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PART = re.compile(r"<!-- ([\w-]+):begin -->.*?<!-- \1:end -->", re.DOTALL)
NO_PROSE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|https?://\S+", re.DOTALL)
#: "(2017)" behind a name, "et al. 2018", and arXiv's.
CITED = re.compile(
    r"(?:\(|et al\. |\w, |[A-Z][a-z]+ )(?:19|20)\d\d\b|arXiv:[\d.]+|Python [\d.]+|Algorithm \d"
)
SMALL = 12


def prose(text: str) -> str:
    text = PART.sub("", FENCE.sub("", text))
    return CITED.sub("", NO_PROSE.sub("", text))


def numbers(text: str) -> set[str]:
    """
    >>> sorted(numbers("of 1,437 images 2.8 % in 784-50-10, N(0, 0.1) and 1/4, x2 and 2e3"))
    ['0', '0.1', '1', '1,437', '2', '2.8', '784']
    """
    return {match[0].rstrip(",") for match in NUMBER.finditer(text)}


def plain(number: str) -> bool:
    """A whole number that is no measurement: a count of things on the page, a name."""
    return number.isdigit() and int(number) <= SMALL


def rows_of(name: str) -> int:
    return len(getattr(sklearn.datasets, f"load_{name}")().target)


def shapes() -> tuple[int, ...]:
    digits = data.digits()
    return len(digits.train_x), len(digits.test_x)


RECIPE = Settings()
PAPER = open_settings.fill(
    nn.Linear(1, 1), likelihoods.Gaussian(1.0), prior=None, preconditioner=None, dynamics=None,
    step_size=0.1, init=None,
)  # fmt: skip
LLC = importlib.import_module("natural_langevin.slt.llc")  # slt.llc itself is the function
LEVELS = [100 * level for level in summary.LEVELS]
#: Numbers in prose by page: the words they stand in, and what makes them.
QUOTED: dict[str, dict[str, Callable[[], Sequence[float]]]] = {
    "README.md": {"some 200 networks are kept": lambda: [RECIPE.cost.most_draws]},
    "docs/tutorial.md": {
        "1,437 images of handwritten digits to learn from, 360 to test with": shapes,
        "some 200 networks, the *draws*": lambda: [RECIPE.cost.most_draws],
        "150 flowers": lambda: [rows_of("iris")],
    },
    "docs/why.md": {
        "(478,410 weights)": lambda: [
            claims.results("bench-mlp-cpu")["sections"]["steps"]["networks"][0]["parameters"]
        ]
    },
    "docs/samplers.md": {
        ", 100 rows, quasi-diagonal": lambda: [len(problems.problem("moons").x)],
        "step 0.2 / λ": lambda: [claims.results("samplers")["settings"]["steepness"]],
    },
    "docs/trust.md": {
        "its 50, 90 and 95 % intervals": lambda: LEVELS,
        "rarely below 1.01": lambda: [limits.RHAT],
    },
    "docs/recipes/regression.md": {
        "442 diabetes patients": lambda: [rows_of("diabetes")],
        "of the 50, 90 and 95 % intervals": lambda: LEVELS,
    },
    "docs/recipes/classification.md": {"569 tumours": lambda: [rows_of("breast_cancer")]},
    "docs/defaults.md": {
        "prior N(0, 0.1)": lambda: [0, PAPER.prior.variance],
        "may take 0.6 of what is left": lambda: [RECIPE.time.descent],
    },
    "docs/deployment.md": {"at most 2,000 weights": lambda: [threads.FEW_WEIGHTS]},
    "docs/how_long.md": {
        "What 1,000 steps": lambda: [1000],
        "2,000 to 450,000 steps": lambda: [
            RECIPE.length.fewest, RECIPE.cheap.unmixed * RECIPE.length.most,
        ],
    },
    "docs/learning_coefficients.md": {
        "all of up to 1,000 rows, otherwise a fifth, at most 4,096": lambda: [
            LLC.FEWEST_ROWS, LLC.MOST_ROWS,
        ],
        "a tenth below λ at n = 20,000": lambda: [20_000],  # 1 / ln 20,000 = 0.101
    },
    "docs/marginal_likelihoods.md": {"256 draws of the prior": lambda: [marginal.PRIOR_DRAWS]},
}  # fmt: skip


@pytest.mark.parametrize("page", GUIDES)
def test_every_number_has_a_source(page: str) -> None:
    """In the results, in the code, or in what the page itself runs and prints."""
    text = (ROOT / page).read_text(encoding="utf-8")
    own = numbers(" ".join(match[0] for match in (*FENCE.finditer(text), *PART.finditer(text))))
    quoted = QUOTED.get(page, {})
    said = " ".join(text.split())
    for words, source in quoted.items():
        assert words in said
        found = [match[0].rstrip(",") for match in NUMBER.finditer(words)]
        for number, known in zip(found, source(), strict=True):
            digits = len(number.partition(".")[2])
            assert float(number.replace(",", "")) == round(known, digits), words
    sourced = own | numbers(" ".join(quoted))
    assert sorted(n for n in numbers(prose(text)) - sourced if not plain(n)) == []


def test_a_number_without_a_source_would_be_noticed() -> None:
    assert numbers(prose("test NLL 0.0546 of 1,200 rows, `x = 3.5` and [7](a/99.md)")) == {
        "0.0546", "1,200", "7",
    }  # fmt: skip


def test_pages_are_those_of_the_results() -> None:
    """Evidence, and the tables of other pages: python -m lab.claims writes them."""
    stale = [str(p.relative_to(ROOT)) for p, text in claims.written() if p.read_text() != text]
    assert not stale, f"run python -m lab.claims: {stale}"
