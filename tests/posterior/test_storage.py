"""A saved posterior comes back as it was; anything else about the files is one clear refusal."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import small_run
from natural_langevin import Langevin, Posterior, StorageError, __version__, likelihoods
from natural_langevin._internal import capacity
from natural_langevin._internal.checked_json import checksum
from natural_langevin._internal.fingerprints import check_model, describe_model
from natural_langevin.posterior import manifest
from small_run import assert_same, network, the_file


@pytest.fixture(scope="module")
def posterior():
    return small_run.sample()


@pytest.fixture
def folder(posterior, tmp_path):
    posterior.save(tmp_path / "saved")
    return tmp_path / "saved"


def change_words(folder: Path, change) -> None:
    """Rewrites the manifest as somebody would who knows how it is made."""
    path = folder / manifest.NAME
    words = json.loads(path.read_text())
    change(words)
    words["checksum"] = checksum(words)
    path.write_text(json.dumps(words))


@pytest.mark.parametrize("memory_map", [False, True])
def test_the_round_trip_is_exact(posterior, folder, memory_map):
    again = Posterior.load(folder, network(), memory_map=memory_map)
    x = torch.rand(7, 3)
    assert_same(posterior, again)
    assert torch.equal(again.predict(x).mean, posterior.predict(x).mean)
    assert again.config == posterior.config
    assert again.likelihood == posterior.likelihood


def test_any_program_can_read_the_numbers(posterior, folder):
    found = load_file(the_file(folder, "samples"))
    assert set(found) == set(posterior.samples)
    assert all(torch.equal(found[name], value) for name, value in posterior.samples.items())


def test_the_words_say_what_was_run(posterior, folder):
    words = json.loads((folder / manifest.NAME).read_text())
    assert words["version"] == __version__
    assert words["config"]["seed"] == 5
    assert words["config"]["thin"] == 1
    assert words["config"]["data"] == posterior.config["data"]
    assert len(words["config"]["data"]) == 64
    other = small_run.sample(data=(torch.rand(60, 3), torch.arange(60) % 2))
    assert other.config["data"] != posterior.config["data"]


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
    with pytest.raises(StorageError, match=r"LogLoss.*not with Categorical"):
        Posterior.load(tmp_path, nn.Linear(3, 3), likelihood=likelihoods.Categorical())
    assert Posterior.load(tmp_path, nn.Linear(3, 3), likelihood=loss).draws == 4


def wider() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def with_a_buffer(value: float) -> nn.Module:
    net = network()
    net.register_buffer("scale", torch.tensor(value))
    return net


def half_frozen() -> nn.Module:
    net = network()
    net[0].bias.requires_grad_(False)
    return net


@pytest.mark.parametrize(
    ("model", "difference"),
    [
        (wider(), r"'0\.weight' is torch.float32 \(4, 3\) in the posterior and .* \(5, 3\)"),
        (network().double(), r"'0\.weight' is torch.float32 .*torch.float64"),
        (nn.Linear(3, 4), r"different parameters: the model lacks \['0.bias'.*also has \['bias'"),
        (network(nn.ReLU), r"'\(1\): Tanh\(\)' there, '\(1\): ReLU\(\)' in"),
        (with_a_buffer(1.0), r"different buffers.*\['scale'\]"),
        (half_frozen(), r"different parameters: the model lacks \['0.bias'\]"),
    ],
)
@pytest.mark.parametrize("memory_map", [False, True])
def test_another_model_is_refused_with_the_difference_named(folder, model, difference, memory_map):
    with pytest.raises(StorageError, match=difference):
        Posterior.load(folder, model, memory_map=memory_map)


def test_other_values_of_buffers_and_frozen_parameters_are_refused(tmp_path):
    net = half_frozen()
    net.register_buffer("scale", torch.tensor(1.0))
    small_run.sample(sampler={"model": net}).save(tmp_path)
    Posterior.load(tmp_path, net)
    with torch.no_grad():
        net[0].weight.add_(1.0)  # sampled: its value here does not matter
    Posterior.load(tmp_path, net)
    net.scale.fill_(2.0)
    with pytest.raises(StorageError, match=r"'scale' differs from its value"):
        Posterior.load(tmp_path, net)
    net.scale.fill_(1.0)
    with torch.no_grad():
        net[0].bias.add_(1e-3)
    with pytest.raises(StorageError, match=r"'0\.bias' differs from its value"):
        Posterior.load(tmp_path, net)


def test_buffers_that_no_state_dict_holds_and_tied_weights_are_left_alone():
    def tied() -> nn.Module:
        net = network()
        net.add_module("again", net[0])
        net.register_buffer("cache", torch.rand(3), persistent=False)
        return net

    saved, model = describe_model(tied()), tied()
    assert saved["fixed"] == {}
    with torch.no_grad():
        model[0].weight.add_(1.0)
    check_model(saved, model)
    model.register_buffer("scale", torch.ones(1))
    with pytest.raises(StorageError, match="scale"):
        check_model(saved, model)


def test_another_version_of_torch_excuses_no_other_architecture(folder):
    change_words(folder, lambda words: words["model"].update(torch="2.0.0"))
    assert Posterior.load(folder, network()).draws == 8
    with pytest.raises(StorageError, match=r"another architecture.*Tanh.*ReLU.*torch 2\.0\.0"):
        Posterior.load(folder, network(nn.ReLU))


@pytest.mark.parametrize("memory_map", [False, True])
@pytest.mark.parametrize("kind", ["samples", "posterior"])
@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_truncated_numbers_are_refused(folder, cut, kind, memory_map):
    path = the_file(folder, kind)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(StorageError):
        Posterior.load(folder, network(), memory_map=memory_map)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"format": 7}', '{"format": 2}', '{"format": 2, "format": 2}', "NaN"]
)
def test_malformed_words_are_refused(folder, text):
    (folder / manifest.NAME).write_text(text)
    with pytest.raises(StorageError):
        Posterior.load(folder, network())


def test_unexpected_tensors_are_refused(folder):
    path = the_file(folder, "samples")
    tensors = load_file(path)
    save_file(tensors | {"extra": torch.zeros(1)}, path)
    with pytest.raises(StorageError, match=r"unexpected \['extra'\]"):
        Posterior.load(folder, network())


def test_a_hostile_likelihood_name_is_refused(folder):
    def hostile(words):
        words["likelihood"] = {"name": "__import__", "arguments": {"name": "os"}}

    change_words(folder, hostile)
    with pytest.raises(StorageError, match="__import__"):
        Posterior.load(folder, network())


def test_a_folder_without_a_posterior_is_refused(tmp_path):
    with pytest.raises(StorageError, match=r"posterior\.json"):
        Posterior.load(tmp_path, network())


def test_a_pipe_does_not_keep_the_reader_waiting(folder):
    path = the_file(folder, "posterior")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StorageError, match="plain file"):
        Posterior.load(folder, network())


def test_samples_that_do_not_fit_into_memory_name_the_remedy(folder, monkeypatch):

    monkeypatch.setattr(capacity, "in_memory", lambda device: 100)
    with pytest.raises(StorageError, match="memory_map=True"):
        Posterior.load(folder, network())
    assert Posterior.load(folder, network(), memory_map=True).draws == 8


def test_a_model_with_dropout_predicts_after_loading(tmp_path):
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))

    x = torch.rand(20, 3)
    sampler = Langevin(net(), likelihoods.Categorical(), step_size=1e-4, chains=1)
    first = sampler.sample((x, x.argmax(1) % 2), 4, batch_size=10, progress=False)
    first.save(tmp_path)
    assert torch.equal(Posterior.load(tmp_path, net()).predict(x).mean, first.predict(x).mean)


def test_saving_again_replaces_the_old_files(posterior, folder):
    before = {path.name for path in folder.iterdir()}
    other = small_run.sample(sampler={"seed": 6})
    (folder / ".samples-0123456789abcdef.safetensors.77.part").write_bytes(b"of a killed save")
    (folder / "samples-0123456789abcdef.safetensors").write_bytes(b"of a killed save")
    (folder / "notes.txt").write_text("mine")
    other.save(folder)
    after = {path.name for path in folder.iterdir()}
    assert len(after) == 4
    assert after & before == {manifest.NAME}
    assert "notes.txt" in after
    assert_same(other, Posterior.load(folder, network()))


def test_a_mapped_posterior_survives_that_its_file_is_replaced(posterior, folder):
    mapped = Posterior.load(folder, network(), memory_map=True)
    small_run.sample(sampler={"seed": 6}).save(folder)
    assert_same(posterior, mapped)
    x = torch.rand(7, 3)
    assert torch.equal(mapped.predict(x).mean, posterior.predict(x).mean)
    mapped.save(folder)  # and its samples are written out again
    assert_same(posterior, Posterior.load(folder, network()))


def test_a_mapped_posterior_saves_to_its_own_and_to_another_folder(posterior, folder, tmp_path):
    mapped = Posterior.load(folder, network(), memory_map=True)
    name = the_file(folder, "samples").name
    mapped.save(folder)
    assert the_file(folder, "samples").name == name
    mapped.save(tmp_path / "copy")
    assert_same(posterior, Posterior.load(tmp_path / "copy", network()))
    assert_same(posterior, Posterior.load(folder, network()))


def test_changing_a_mapped_sample_leaves_the_file_alone(posterior, folder):
    mapped = Posterior.load(folder, network(), memory_map=True)
    mapped.samples["0.weight"].zero_()
    assert_same(posterior, Posterior.load(folder, network()))
