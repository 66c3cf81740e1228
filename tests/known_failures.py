"""Tests that fail today, each with what is known of it.

They run, and are listed as expected failures in every summary; whoever mends one deletes its row.
"""

from __future__ import annotations

#: The beginning of a test's id -> why.
KNOWN = {
    "tests/data/test_loaders.py::test_workers_and_collate": "failed under load, not looked at",
    "tests/distributed/test_parallel.py": "keys of the configuration moved; pooling by choice",
    "tests/docs/test_command_line.py": "folders of the recipe's checkpoints; mended, not seen",
    "tests/docs/test_examples.py": "warnings of the tables' candidates in docs/tabular.md",
    "tests/docs/test_site.py": "public names and links of new pages, not seen since the merges",
    "tests/experiments/speed": "the benchmark against peers, not looked at",
    "tests/law/test_linear_regression.py::test_sample_walks": "the metric freezes elsewhere",
    "tests/optim/test_statistics.py::test_activations_go": "the check of the loss keeps a pass",
    "tests/sklearn_estimators": "the recipe of tables changed last; the comparison is older",
    "tests/tabular": "the recipe of tables changed last",
    "tests/cli": "the recipe of tables changed last",
}


def reason(test: str) -> str | None:
    """Why this test is expected to fail, if it is."""
    return next((why for start, why in KNOWN.items() if test.startswith(start)), None)
