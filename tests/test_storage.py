"""A saved posterior comes back as it was; anything else about the files is one clear refusal."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from natural_langevin import Langevin, Posterior, likelihoods
from natural_langevin.storage import StorageError


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


@pytest.fixture(scope="module")
def posterior():
    x = torch.rand(60, 3, generator=torch.Generator().manual_seed(1))
    sampler = Langevin(network(), likelihoods.Categorical(), step_size=1e-3, chains=3)
    y = (x.sum(1) > 1.5).long()
    return sampler.sample((x, y), 60, batch_size=20, burn_in=20, thin=5, progress=False)


@pytest.fixture
def folder(posterior, tmp_path):
    posterior.save(tmp_path / "saved")
    return tmp_path / "saved"


def test_the_round_trip_is_exact(posterior, folder):
    again = Posterior.load(folder, network())
    x = torch.rand(7, 3)
    for group in ("samples", "mean", "last"):
        for name, value in getattr(posterior, group).items():
            assert torch.equal(getattr(again, group)[name], value)
    assert torch.equal(again.predict(x).mean, posterior.predict(x).mean)
    assert torch.equal(again.trace, posterior.trace)
    assert again.config == posterior.config
    assert again.likelihood == posterior.likelihood


def test_the_regression_noise_level_is_saved(tmp_path):
    x = torch.rand(40, 3)
    sampler = Langevin(
        nn.Linear(3, 1), likelihoods.Gaussian(sigma="rmse"), step_size=1e-3, chains=2
    )
    first = sampler.sample((x, x.sum(1)), 20, batch_size=20, thin=5, progress=False)
    first.save(tmp_path)
    again = Posterior.load(tmp_path, nn.Linear(3, 1))
    assert torch.equal(again.sigma, first.sigma)


def test_a_log_loss_must_be_given_again(tmp_path):
    loss = likelihoods.LogLoss(lambda out, y: (out - y).square().sum(1))
    sampler = Langevin(nn.Linear(3, 3), loss, step_size=1e-4, chains=1)
    sampler.sample(torch.rand(20, 3), 4, batch_size=10, progress=False).save(tmp_path)
    with pytest.raises(StorageError, match="likelihood="):
        Posterior.load(tmp_path, nn.Linear(3, 3))
    assert Posterior.load(tmp_path, nn.Linear(3, 3), likelihood=loss).draws == 4


def test_another_model_is_refused_by_name(folder):
    with pytest.raises(StorageError, match=r"0\.weight"):
        Posterior.load(folder, nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
    with pytest.raises(StorageError, match="different parameters"):
        Posterior.load(folder, nn.Linear(3, 4))


@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_truncated_numbers_are_refused(folder, cut):
    path = folder / "posterior.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(StorageError):
        Posterior.load(folder, network())


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": 7}', '{"format": 1}', '{"format": 1, "tensors": {"a": 1}}']
)
def test_malformed_words_are_refused(folder, text):
    (folder / "posterior.json").write_text(text)
    with pytest.raises(StorageError):
        Posterior.load(folder, network())


def test_unexpected_tensors_are_refused(folder):
    path = folder / "posterior.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"samples/extra": torch.zeros(1)}, path)
    with pytest.raises(StorageError, match=r"posterior\.json"):
        Posterior.load(folder, network())


def test_a_hostile_likelihood_name_is_refused(folder):
    path = folder / "posterior.json"
    words = json.loads(path.read_text())
    words["likelihood"] = {"name": "__import__", "arguments": {"name": "os"}}
    path.write_text(json.dumps(words))
    with pytest.raises(StorageError, match="__import__"):
        Posterior.load(folder, network())


def test_a_folder_without_a_posterior_is_refused(tmp_path):
    with pytest.raises(StorageError, match=r"posterior\.json"):
        Posterior.load(tmp_path, network())


def test_a_model_with_dropout_predicts_after_loading(tmp_path):
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))

    x = torch.rand(20, 3)
    sampler = Langevin(net(), likelihoods.Categorical(), step_size=1e-4, chains=1)
    first = sampler.sample((x, x.argmax(1) % 2), 4, batch_size=10, progress=False)
    first.save(tmp_path)
    assert torch.equal(Posterior.load(tmp_path, net()).predict(x).mean, first.predict(x).mean)


def test_saving_again_never_pairs_old_words_with_new_numbers(posterior, folder, monkeypatch):
    import natural_langevin.storage as storage

    def full(tensors):
        raise OSError("no space left")

    monkeypatch.setattr(storage, "serialise", full)
    with pytest.raises(OSError, match="space"):
        posterior.save(folder)
    assert not (folder / "posterior.json").exists()
