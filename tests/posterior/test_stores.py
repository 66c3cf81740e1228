"""Where samples go changes nothing about them; how many and how precise is the user's choice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import small_run
from natural_langevin import Posterior, StorageError
from natural_langevin._internal import capacity
from natural_langevin._internal.tensorfile import WriteError
from natural_langevin.posterior import manifest
from natural_langevin.posterior.networks import OnDisk, chunks
from natural_langevin.posterior.stores import InFolder
from natural_langevin.run.kept_draws import check_memory, check_thinning
from small_run import assert_same, network, the_file


@pytest.fixture(scope="module")
def posterior():
    return small_run.sample()


def dropping_every_second(draws: list[int], keep: int) -> list[int]:
    """The oracle of keep=: holds at most ``keep`` and doubles the thinning when one more comes."""
    held: list[int] = []
    stride = 1
    for index, draw in enumerate(draws, start=1):
        if index % stride == 0:
            held.append(draw)
        if len(held) > keep:
            held, stride = held[1::2], 2 * stride
    return held


@pytest.mark.parametrize("burn_in", [0, 3])
@pytest.mark.parametrize("thin", [1, 3])
def test_keep_ends_as_dropping_every_second_sample_would(thin, burn_in):
    for steps in range(burn_in + thin, 70):
        for keep in (1, 2, 3, 5, 8, 100):
            used, count = check_thinning(steps, burn_in, thin, keep)
            kept = list(range(burn_in + used, steps + 1, used))
            every = list(range(burn_in + thin, steps + 1, thin))
            assert len(kept) == count <= keep
            assert kept == dropping_every_second(every, keep)


def test_keep_gives_a_part_of_the_same_samples(posterior):
    fewer = small_run.sample(keep=3)  # of the iterates 5, 6, ..., 12: 8 and 12
    assert fewer.draws == 2
    assert fewer.config["thin"] == 4
    for name, value in fewer.samples.items():
        assert torch.equal(value, posterior.samples[name][:, [3, 7]])


@pytest.mark.parametrize(("keep", "error"), [(0, ValueError), (2.5, TypeError), (-1, ValueError)])
def test_a_wrong_keep_is_refused(keep, error):
    with pytest.raises(error, match="keep must be"):
        small_run.sample(keep=keep)


def test_the_place_does_not_change_the_samples(posterior, tmp_path):
    for store in ("cpu", tmp_path / "draws", str(tmp_path / "text")):
        assert_same(posterior, small_run.sample(store=store))


def test_samples_in_a_folder_are_memory_mapped_and_saved_without_a_copy(posterior, tmp_path):
    drawn = small_run.sample(store=tmp_path)
    assert isinstance(drawn.samples, OnDisk)
    x = torch.rand(7, 3)
    assert torch.equal(drawn.predict(x).mean, posterior.predict(x).mean)
    path = the_file(tmp_path, "draws")
    before = path.stat()
    drawn.save(tmp_path)
    assert path.stat() == before
    assert not list(tmp_path.glob("samples-*"))
    for memory_map in (False, True):
        assert_same(posterior, Posterior.load(tmp_path, network(), memory_map=memory_map))


def test_drawing_again_into_a_folder_ends_what_was_saved_there(posterior, tmp_path, monkeypatch):
    small_run.sample(store=tmp_path).save(tmp_path)

    def killed(self, draw, values):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(InFolder, "put", killed)
        with pytest.raises(KeyboardInterrupt):
            small_run.sample(store=tmp_path)
    with pytest.raises(StorageError, match="no saved posterior"):  # its samples are gone
        Posterior.load(tmp_path, network(), memory_map=True)
    assert_same(posterior, small_run.sample(store=tmp_path))
    assert len(list(tmp_path.iterdir())) == 1


def test_another_run_in_the_same_folder_has_a_file_of_its_own(posterior, tmp_path):
    first = small_run.sample(store=tmp_path)
    first.save(tmp_path)
    small_run.sample(store=tmp_path, sampler={"seed": 6})
    assert len(list(tmp_path.glob("draws-*"))) == 2
    assert_same(posterior, first)
    assert_same(posterior, Posterior.load(tmp_path, network()))


@pytest.mark.parametrize("store", ["gpu", "", 7, None, "disk"])
def test_a_place_that_is_none_is_refused(store):
    with pytest.raises(ValueError, match="store must be"):
        small_run.sample(store=store)


def test_a_file_in_the_place_of_the_folder_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"cannot write samples to .*draws-"):
        small_run.sample(store=tmp_path / "file" / "draws")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("place", ["device", "folder"])
def test_reduced_precision_is_rounding_alone(posterior, tmp_path, dtype, place):
    store = tmp_path if place == "folder" else place
    half = small_run.sample(store=store, sample_dtype=dtype)
    assert half.config["sample_dtype"] == str(dtype)
    for name, value in half.samples.items():
        assert value.dtype == dtype
        assert torch.equal(value, posterior.samples[name].to(dtype))
    # Predicting computes in the model's dtype, with the rounded weights.
    rounded = Posterior(
        model=network(),
        likelihood=posterior.likelihood,
        samples={name: value.to(dtype).float() for name, value in posterior.samples.items()},
        mean=posterior.mean,
        last=posterior.last,
        diverged=posterior.diverged,
    )
    x = torch.rand(7, 3)
    assert torch.equal(half.predict(x).mean, rounded.predict(x).mean)
    assert half.predict(x).mean.dtype == torch.float32
    assert half.network(0, 0)[0].weight.dtype == torch.float32
    half.save(tmp_path / "saved")
    assert_same(half, Posterior.load(tmp_path / "saved", network()))
    assert_same(half, Posterior.load(tmp_path / "saved", network(), memory_map=True))


def test_reduced_samples_reach_arviz():
    half = small_run.sample(sample_dtype=torch.bfloat16)
    assert half.to_arviz().posterior["0.weight"].dtype == "float32"


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, "bfloat16", torch.complex64])
def test_a_wrong_dtype_is_refused(dtype):
    with pytest.raises(ValueError, match="sample_dtype must be"):
        small_run.sample(sample_dtype=dtype)


def test_a_weight_too_large_for_float16_is_an_error_and_no_infinity():
    net = network()
    with torch.no_grad():
        net[2].bias[0] = 1e6
    settings = {"model": net, "step_size": 1e-7}
    with pytest.raises(ValueError, match=r"'2\.bias' is too large .*bfloat16"):
        small_run.sample(sampler=settings, sample_dtype=torch.float16)
    kept = small_run.sample(sampler=settings, sample_dtype=torch.bfloat16).samples["2.bias"]
    assert bool(kept.isfinite().all())


def test_room_is_counted_where_the_samples_go_and_as_they_are_stored(tmp_path, monkeypatch):
    device = torch.device("cpu")
    monkeypatch.setattr(capacity, "in_memory", lambda device: 3_000)
    monkeypatch.setattr(capacity, "on_disk", lambda folder: 3_000)
    large = {"w": (torch.float32, (2, 4, 100))}  # 3200 bytes
    small = {"w": (torch.bfloat16, (2, 4, 100))}
    for place in ("device", "cpu", tmp_path):
        check_memory(small, place, device)
        with pytest.raises(ValueError, match=r"4 samples .*keep="):
            check_memory(large, place, device)
    (tmp_path / "draws-0.safetensors").write_bytes(b"0" * 300)
    check_memory(large, tmp_path, device)  # those of this run are there already


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 100])
@pytest.mark.parametrize("on_disk", [False, True])
def test_chunks_are_all_networks_in_order(posterior, tmp_path, size, on_disk):
    samples = posterior.samples
    if on_disk:
        posterior.save(tmp_path)
        samples = Posterior.load(tmp_path, network(), memory_map=True).samples
    for chains in ([0, 1], [1]):
        found = list(chunks(samples, chains, size, like=posterior.last))
        assert all(1 <= len(chunk["2.bias"]) <= size for chunk in found)
        for name, value in posterior.samples.items():
            joined = torch.cat([chunk[name] for chunk in found])
            assert torch.equal(joined, value[chains].flatten(0, 1))


def test_draws_are_written_as_they_are_drawn(tmp_path, monkeypatch):
    """After every draw the file holds it, wherever it stands in the (chain, draw) order."""
    seen = []
    put = InFolder.put

    def checked(self: InFolder, draw: int, values: dict[str, torch.Tensor]) -> None:
        put(self, draw, values)
        file = OnDisk(self.path, self._specs)
        for name, value in values.items():
            assert torch.equal(file[name][:, draw], value)
        seen.append(draw)

    monkeypatch.setattr(InFolder, "put", checked)
    small_run.sample(store=tmp_path)
    assert seen == list(range(8))
    assert not (tmp_path / manifest.NAME).exists()
    assert isinstance(the_file(tmp_path, "draws"), Path)
