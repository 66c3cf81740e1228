"""Every example runs at its quick size, from its command line to its picture."""

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))
import collect  # noqa: E402

SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
PAGE = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
RESULTS = json.loads((ROOT / "results" / "examples.json").read_text(encoding="utf-8"))
NAMES = [
    "char_transformer",
    "cnn_mnist",
    "lightning_digits",
    "poisson_counts",
    "regression_1d",
    "resnet_groupnorm",
    "transformers_text",
]


@pytest.fixture(autouse=True)
def _one_thread():
    """Fastest for networks as small as these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def load(name: str) -> ModuleType:
    """The script as a module, in this process: importing torch anew takes seconds."""
    spec = importlib.util.spec_from_file_location(
        f"example_{name}", ROOT / "examples" / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_quick(name, folder, capsys, caplog, *, chains: bool = True):
    """The results of a quick run, checked to be written, printed and drawn; with several
    ``chains`` it says whether they agree."""
    results = load(name).main(["--quick", "--out", str(folder)])
    printed = capsys.readouterr().out
    assert (folder / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert set(json.loads((folder / f"{name}.json").read_text())) == set(results)
    assert ("R-hat" in printed) == chains
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == []
    return results, printed


def test_all_examples_are_tested():
    assert [script.stem for script in SCRIPTS] == NAMES


# Each bound below is far from what the quick run gives, and far from what an untrained network
# would: chance is 10 % for the images and 4 % for the characters.


def test_cnn(tmp_path, capsys, caplog):
    results, printed = run_quick("cnn_mnist", tmp_path, capsys, caplog)
    assert results["data"] == "digits"  # the quick size never asks for a download
    assert results["scores"]["accuracy"] > 0.6
    assert results["scores"]["ood_auroc"] is not None
    assert "calibration error" in printed


def test_resnet(tmp_path, capsys, caplog):
    results, printed = run_quick("resnet_groupnorm", tmp_path, capsys, caplog)
    assert results["scores"]["accuracy"] > 0.3
    assert "calibration error" in printed


def test_transformer(tmp_path, capsys, caplog):
    results, printed = run_quick("char_transformer", tmp_path, capsys, caplog)
    assert results["scores"]["accuracy"] > 0.15
    assert len(results["text"]) == 24 + 1 + 12
    assert results["text"] in printed


@pytest.mark.filterwarnings("ignore::UserWarning:lightning")
@pytest.mark.filterwarnings("ignore::FutureWarning:lightning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_lightning(tmp_path, capsys, caplog):
    results, printed = run_quick("lightning_digits", tmp_path, capsys, caplog, chains=False)
    assert results["scores"]["accuracy"] > 0.8
    assert printed.count("calibration error") == 2  # of the ensemble, and of one network


@pytest.mark.filterwarnings("ignore::UserWarning:torch.utils.data")
def test_transformers(tmp_path, capsys, caplog):
    results, printed = run_quick("transformers_text", tmp_path, capsys, caplog, chains=False)
    assert results["scores"]["accuracy"] > 0.4  # the commonest of the four modules has 29 %
    assert printed.count("calibration error") == 2


def test_sentences_are_split_once_and_padded():
    module = load("transformers_text")
    train, test, odd = module.load()
    assert set(train.y.tolist()) == set(test.y.tolist()) == set(range(len(module.MODULES)))
    assert train.x.shape[1] == odd.shape[1] == module.LENGTH
    assert 0 < int(train.x.max()) < module.WORDS
    assert not set(map(tuple, train.x.tolist())) & set(map(tuple, test.x.tolist()))


def test_windows_do_not_overlap():
    module = load("char_transformer")
    train, test = module.windows()
    together = torch.cat([train[1], test[1]])
    assert together.numel() == (len(module.TEXT) - 1) // module.WINDOW * module.WINDOW
    assert torch.equal(train[0][:, 1:], train[1][:, :-1])


def test_transformer_is_causal():
    """A character must not see those that follow it, or its likelihood would be a fraud."""
    module = load("char_transformer")
    network = module.Transformer(16, heads=2, depth=2)
    x = torch.randint(len(module.ALPHABET), (1, module.WINDOW))
    changed = x.clone()
    changed[0, 10] = (x[0, 10] + 1) % len(module.ALPHABET)
    before, after = network(x)[0], network(changed)[0]
    assert torch.allclose(before[:10], after[:10], atol=1e-6)
    assert not torch.allclose(before[10:], after[10:], atol=1e-3)


def test_regression(tmp_path, capsys, caplog):
    results, printed = run_quick("regression_1d", tmp_path, capsys, caplog)
    spread = results["epistemic standard deviation"]
    assert spread["on the data"] < spread["beyond |x| = 2"]
    assert "inside 90% intervals" in printed


def test_poisson(tmp_path, capsys, caplog):
    results, printed = run_quick("poisson_counts", tmp_path, capsys, caplog)
    scores = results["scores"]
    assert scores["nll of the true rates"] < scores["nll"] < scores["nll of a constant rate"]
    assert "inside 90% intervals" in printed


def test_poisson_loss_and_cumulative_agree_with_torch():
    module = load("poisson_counts")
    rate = torch.tensor([[0.3], [2.0], [17.0]])
    y = torch.tensor([[0.0], [3.0], [15.0]])
    wanted = -torch.distributions.Poisson(rate).log_prob(y)[:, 0]
    assert torch.allclose(module.poisson_loss(rate.log(), y), wanted, atol=1e-5)
    below = torch.stack(
        [
            torch.distributions.Poisson(rate).log_prob(torch.tensor(float(k))).exp()
            for k in range(81)
        ]
    ).cumsum(0)
    assert torch.allclose(module.cumulative(rate), below.movedim(0, -1), atol=1e-5)


def test_poisson_draws_have_the_rate_as_mean_and_variance():
    from natural_langevin import random

    module, count = load("poisson_counts"), 20_000
    key = random.stream(random.origin(0, random.LABELS, torch.arange(1)), 0)[0]
    for rate in (0.5, 9.0):
        drawn = module.draw_counts(torch.full((count, 1), rate).log(), key)
        # Standard errors: sqrt(rate / n) of the mean, sqrt((rate + 2 rate^2) / n) of the variance.
        assert abs(drawn.mean() - rate) < 5 * (rate / count) ** 0.5
        assert abs(drawn.var() - rate) < 5 * ((rate + 2 * rate**2) / count) ** 0.5


def test_without_mnist(monkeypatch, capsys):
    """Where MNIST cannot be had, digits take its place, and it is said."""
    module = load("cnn_mnist")

    def unavailable():
        raise module.data.DataUnavailableError("MNIST is not available.")

    monkeypatch.setattr(module.data, "mnist", unavailable)
    found, side = module.load(quick=False)
    assert (found.name, side) == ("digits", 8)
    assert "digits instead" in capsys.readouterr().out


def test_the_page_shows_commands_that_parse(tmp_path, monkeypatch):
    """Every `python examples/…` line of the page, with the script's own parser."""
    monkeypatch.chdir(tmp_path)
    lines = [
        shlex.split(line)
        for line in re.findall(r"^(?:\w+=\S+ )?python (examples/.*)$", PAGE, re.MULTILINE)
    ]
    assert sorted({Path(line[0]).stem for line in lines}) == NAMES
    for script, *options in lines:
        assert load(Path(script).stem).arguments(options).out.is_dir()


def test_the_pages_table_is_that_of_the_results():
    """`python tests/examples/collect.py RUNS` writes both."""
    (shown,) = collect.TABLE.findall(PAGE)
    assert shown == collect.table(RESULTS["runs"])


def test_results_name_their_settings_and_machine():
    assert set(RESULTS["runs"]) <= set(NAMES)
    assert RESULTS["machine"]["cpu"]
    for name, run in RESULTS["runs"].items():
        assert run["settings"]["seed"] == 0
        assert (ROOT / "docs" / "examples" / f"{name}.png").stat().st_size < 150_000


def test_full_size_regression_is_calibrated_and_unsure_off_the_data():
    run = RESULTS["runs"]["regression_1d"]
    spread = run["epistemic standard deviation"]
    assert 4 * spread["on the data"] < min(spread["in the gap"], spread["beyond |x| = 2"])
    for level, found in run["scores"]["coverage"].items():
        assert abs(found - float(level)) < 0.05


def test_full_size_counts_are_calibrated_and_near_the_truth():
    scores = RESULTS["runs"]["poisson_counts"]["scores"]
    assert scores["nll"] - scores["nll of the true rates"] < 0.03
    assert abs(scores["inside 90% intervals"] - 0.9) < 0.03
