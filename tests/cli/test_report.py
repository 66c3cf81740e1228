"""report decides from what it is given: results, a run, or any saved posterior."""

import json
import sys

import numpy as np
import torch

from natural_langevin import Langevin, likelihoods, models
from tables import one_line, run

MODULE = """
from natural_langevin import models
def network():
    return models.mlp(2, 3, (4,))
number = 3
"""


def test_a_run_has_a_page_with_its_scores(classes, numbers, tmp_path):
    for folder in (classes, numbers):
        page = tmp_path / "page.html"
        result = run("report", folder, "--out", page)
        assert result.exit_code == 0, result.output
        assert result.stdout.strip() == str(page)
        html = page.read_text()
        quality = json.loads((folder / "quality.json").read_text())
        assert f"{quality['scores']['nll']:.4f}".replace("-", "\N{MINUS SIGN}") in html
        for verdict in quality["diagnosis"]["verdicts"]:
            assert verdict.split("(")[0] in html
        assert "Calibration" in html
        assert "mean" in html
    assert run("report", classes).exit_code == 0
    assert (classes / "report.html").exists()
    (classes / "report.html").unlink()


def saved(folder, likelihood, y, outputs=3):
    x = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
    model = models.mlp(2, outputs, (4,))
    sampler = Langevin(model, likelihood, chains=2, step_size=1e-3, init="fan_in")
    posterior = sampler.sample((x, y), steps=120, batch_size=20, thin=10, progress=False)
    posterior.save(folder)
    np.savez(folder.parent / "test.npz", x=x.numpy(), y=y.numpy())


def test_any_saved_posterior_has_a_page(tmp_path, monkeypatch):
    saved(tmp_path / "mine", likelihoods.Categorical(), torch.arange(40) % 3)
    plain = run("report", tmp_path / "mine")
    assert plain.exit_code == 0, plain.output
    html = (tmp_path / "mine" / "report.html").read_text()
    assert "QuasiDiagonalFisher" in html
    assert "Categorical" in html
    assert "--model" in html

    (tmp_path / "mymodels.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = ("report", "mine", "--model", "mymodels:network")
    assert run(*words).exit_code == 0
    html = (tmp_path / "mine" / "report.html").read_text()
    assert "Training loss" in html
    assert "Calibration" not in html
    assert run(*words, "--data", "test.npz").exit_code == 0
    html = (tmp_path / "mine" / "report.html").read_text()
    assert "Reliability" in html
    assert "R-hat" in html

    for options, part in (
        (("--model", "mymodels:absent"), "package.module:name"),
        (("--model", "nowhere:network"), "package.module:name"),
        (("--data", "test.npz"), "--data needs --model"),
        (("--model", "mymodels:network", "--data", "mymodels.py"), "np.savez"),
    ):
        assert part in one_line(run("report", "mine", *options))


def test_a_regression_of_ones_own_is_scored_too(tmp_path, monkeypatch):
    y = torch.linspace(0, 1, 40)[:, None]
    saved(tmp_path / "mine", likelihoods.Gaussian(sigma=0.5), y, outputs=1)
    (tmp_path / "ownmodels.py").write_text(MODULE.replace("2, 3", "2, 1"))
    monkeypatch.chdir(tmp_path)
    words = ("report", "mine", "--model", "ownmodels:network", "--data", "test.npz")
    assert run(*words).exit_code == 0
    assert "Coverage of intervals" in (tmp_path / "mine" / "report.html").read_text()


def test_a_folder_of_something_else_is_one_line(tmp_path):
    (tmp_path / "a.txt").write_text("")
    assert "no run, no posterior and no results" in one_line(run("report", tmp_path))
    (tmp_path / "posterior.json").write_text("[]")
    assert "save it again" in one_line(run("report", tmp_path))
