"""Hugging Face: a posterior as a repository of the hub, with a card that says what it is.

hub.push(posterior, "me/my-posterior", scores=posterior.evaluate(x_test, y_test))
posterior = hub.load("me/my-posterior", model)

A repository is what ``Posterior.save`` writes, safetensors and JSON, and a README.md. The model's
code is not in it: whoever loads it has the module.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from natural_langevin._internal.extras import needing
from natural_langevin._internal.messages import visible
from natural_langevin._internal.version import __version__
from natural_langevin.likelihoods import Likelihood
from natural_langevin.metrics.summary import ClassificationScores, RegressionScores
from natural_langevin.posterior.posterior import Posterior

Scores = ClassificationScores | RegressionScores


def card(posterior: Posterior, *, title: str = "Posterior", scores: Scores | None = None) -> str:
    """The README.md of a repository: what was sampled, how (the plan) and how well (``scores``).

    Texts of others are indented, which Markdown shows as they are."""
    parts = [
        "---\nlibrary_name: natural-langevin\ntags:\n- bayesian\n- uncertainty\n- langevin\n---",
        f"# {_line(title)}",
        "Samples of a neural network's weights from their Bayesian posterior, by "
        f"natural-langevin {__version__}.",
        _quoted(repr(posterior)),
        "## Load",
        _quoted(
            "from natural_langevin.integrations import hub\n\n"
            'posterior = hub.load("this/repository", model)  # an nn.Module as it was sampled\n'
            "posterior.predict(x)"
        ),
    ]
    if posterior.plan is not None:
        parts += ["## How it was sampled", _quoted(str(posterior.plan))]
    if scores is not None:
        parts += ["## Scores", _quoted(str(scores))]
    return "\n\n".join(parts) + "\n"


def write(
    posterior: Posterior,
    folder: str | os.PathLike[str],
    *,
    title: str = "Posterior",
    scores: Scores | None = None,
) -> None:
    """The repository in a folder: the saved posterior, and its card."""
    posterior.save(folder)
    text = card(posterior, title=title, scores=scores)
    Path(folder, "README.md").write_text(text, encoding="utf-8")


def push(
    posterior: Posterior,
    repo_id: str,
    *,
    scores: Scores | None = None,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
) -> str:
    """Uploads it in one commit, and returns the commit's address. ``repo_id``: "user/name", made
    where it is not there."""
    with needing("hub.push needs the package huggingface_hub", "hub"):
        from huggingface_hub import HfApi

    api = HfApi(token=token)
    api.create_repo(repo_id, private=private, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        write(posterior, folder, title=repo_id, scores=scores)
        done: Any = api.upload_folder(
            repo_id=repo_id, folder_path=folder, revision=revision,
            commit_message=repr(posterior), delete_patterns=["*.safetensors", "*.json"],
        )  # fmt: skip
    return str(done.commit_url)


def load(
    repo: str | os.PathLike[str],
    model: nn.Module,
    *,
    likelihood: Likelihood | None = None,
    revision: str | None = None,
    token: str | None = None,
) -> Posterior:
    """The posterior of a repository, "user/name" or a folder of this machine; nothing of it is
    executed. The rest as in ``Posterior.load``."""
    if Path(repo).is_dir():
        return Posterior.load(repo, model, likelihood=likelihood)
    with needing("hub.load needs the package huggingface_hub", "hub"):
        from huggingface_hub import snapshot_download

    with tempfile.TemporaryDirectory() as folder:
        snapshot_download(
            os.fspath(repo), revision=revision, token=token, local_dir=folder,
            allow_patterns=["*.safetensors", "*.json"],
        )  # fmt: skip
        return Posterior.load(folder, model, likelihood=likelihood)


def _line(text: str) -> str:
    return visible(" ".join(text.split())).replace("<", "&lt;")


def _quoted(text: str) -> str:
    return "\n".join(f"    {line}" for line in visible(text).splitlines())
