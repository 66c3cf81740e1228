"""The table beyond the paper at toy size: every part, its rows, resuming, and the plain entry."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy
import pytest
import torch

from lab.beyond import __main__ as command
from lab.beyond import model_parts
from lab.beyond.inputs import Inputs, ViewScorer
from lab.beyond.local import Local, envelope
from lab.beyond.parts import PARTS
from lab.beyond.problems import problem
from lab.beyond.protocol import TOY, Protocol, Setting
from lab.beyond.run import BeyondError, run
from lab.beyond.sampling import Bench
from lab.beyond.scoring import resolved
from natural_langevin import random
from natural_langevin.data import DataError, Dataset
from natural_langevin.metrics import nll
from natural_langevin.models import mlp
from natural_langevin.run.loop import DivergenceError


def images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A bright bar in one of three places of a noisy 6 x 6 image."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (count,), generator=generator)
    x = 0.3 * torch.rand(count, 6, 6, generator=generator)
    x[torch.arange(count), 2 * y] += 0.6
    return x.flatten(1), y


DATA = Dataset("bars", *images(360, 0), *images(90, 1), num_classes=3, source="made up")
FIXED = Setting(0.8, 3e-4, 60.0, (0.2, 0.3, 0.02))
PROTOCOL = replace(
    TOY, hidden=(8, 8), steps=140, friction=0.3, fixed=(FIXED,), overdamped_fixed=(FIXED,)
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("beyond") / "rows.json"
    return out, run(DATA, out, protocol=PROTOCOL)


def test_every_part_leaves_its_rows(finished):
    out, results = finished
    assert json.loads(out.read_text()) == json.loads(json.dumps(results))
    assert list(results["parts"]) == list(PARTS)
    assert all(part["complete"] for part in results["parts"].values())
    labels = [row["label"] for row in results["rows"]]
    for wanted in ("one chain", "2 pooled chains", "all 4 chains pooled"):
        assert wanted in labels
    for wanted in ("Dropout, plain inputs", "MC-dropout, 3 masks, plain", "2 SGD networks, plain"):
        assert any(label.startswith(wanted) for label in labels)
    assert any(label.startswith("one chain, no momentum, plain") for label in labels)
    assert "2 pooled, prototype, length 0.8" in labels
    assert "2 pooled, no momentum, prototype, length 0.8" in labels
    for kind in ("places", "noisy labels", "places and noisy labels"):
        assert {f"one chain, {kind}", f"2 pooled, {kind}"} <= set(labels)
    for row in results["rows"]:
        assert 0 < row["nll"]["mean"] < 3
        assert 0 <= row["accuracy"]["mean"] <= 100
        assert row["updates"] == PROTOCOL.steps
    assert results["config"]["validation"] == 60
    assert results["machine"]["cores"] > 0


def test_the_chains_learn_and_their_temperature_is_measured(finished):
    final = finished[1]["parts"]["final"]
    best = next(row for row in final["rows"] if row["label"] == "all 4 chains pooled")
    assert best["accuracy"]["mean"] > 60
    assert final["measured"]["kinetic"]["noise"][0] == pytest.approx(1, abs=0.05)
    virial = final["measured"]["virial"]
    assert final["groups"][0]["chains"] == 4
    assert len(virial) == len(final["groups"])
    network = mlp(36, 3, PROTOCOL.hidden)
    sizes = {k: p.numel() for k, p in network.named_parameters()}
    for of in virial:
        together = sum(sizes[k] * of["tensors"][k][0] for k in sizes) / sum(sizes.values())
        assert of["temperature"] == pytest.approx(together)
    for row in final["rows"]:
        assert row["setting"] in [{k: g[k] for k in row["setting"]} for g in final["groups"]]
        assert row["virial"] in [of["temperature"] for of in virial]
        assert 0 < row["resolved"]["mean"] < row["nll"]["mean"] + 1e-3


def test_a_row_all_of_whose_chains_diverged_does_not_take_the_others_along(tmp_path, finished):
    wild = FIXED._replace(step_size=1e9)
    out = tmp_path / "rows.json"
    protocol = replace(PROTOCOL, fixed=(wild,))
    config = finished[1]["config"] | {"fixed": json.loads(json.dumps([wild]))}
    known = finished[1] | {"config": config}
    parts = {k: known["parts"][k] for k in ("select", "refine")}
    out.write_text(json.dumps(known | {"parts": parts, "rows": []}))
    final = run(DATA, out, protocol=protocol, parts={"final": 1e9})["parts"]["final"]
    assert final["diverged"] == [f"{k}, prototype, length 0.8" for k in ("one chain", "2 pooled")]
    labels = [row["label"] for row in final["rows"]]
    assert labels[:3] == ["one chain", "one chain, all 4 of them", "2 pooled chains"]
    assert final["rows"][0]["nll"]["mean"] < 3


def test_choices_are_made_on_held_out_images_by_searches(finished):
    parts = finished[1]["parts"]
    for name in PARTS:
        if not name.endswith("select") or name.startswith("baselines"):
            continue
        found = parts[name]["ranking"]
        by = {"noisy-select": "alone", "both-select": "brier", "deskewed-select": "brier"}.get(
            name, "resolved"
        )
        scores = [row[by] for row in found]
        assert scores == sorted(scores)
        assert sum(parts[name]["rounds"]) >= len(found)
    chosen = parts["refine"]["ranking"][0]
    assert chosen["length"] in (0.0, parts["select"]["ranking"][0]["length"])
    assert len({row["length"] for row in parts["select"]["ranking"]}) == 3  # both ways from one
    assert parts["final"]["groups"][0]["variances"] == chosen["variances"]
    assert parts["both"]["groups"][0]["noise"] == parts["noisy-select"]["ranking"][0]["noise"] > 0
    assert parts["both"]["groups"][0]["width"] > 0
    single = next(g for g in parts["final"]["groups"] if len(set(g["variances"])) == 1)
    assert single["variances"][0] in PROTOCOL.single


def test_out_of_time_it_goes_on_with_the_same_numbers(tmp_path, finished):
    out, said = tmp_path / "rows.json", []
    whole = finished[1]
    run(DATA, out, protocol=PROTOCOL, parts={"select": 1e9, "refine": 1e9})
    for _ in range(PROTOCOL.steps // PROTOCOL.thin):  # a piece at a time
        found = run(DATA, out, protocol=PROTOCOL, parts={"final": 0.0}, say=said.append)
        if found["parts"].get("final", {}).get("complete"):
            break
    assert any("time is over" in line for line in said)
    assert any("no draw was kept" in line for line in said)
    assert any("goes on at update" in line for line in said)
    rows = found["parts"]["final"]["rows"]
    for row, other in zip(rows, whole["parts"]["final"]["rows"], strict=True):
        assert row["nll"]["values"] == pytest.approx(other["nll"]["values"], rel=1e-6)
    assert not (tmp_path / "rows.parts" / "final").exists()


def test_another_configuration_and_unknown_parts_are_refused(finished):
    out, _ = finished
    with pytest.raises(BeyondError, match="another run"):
        run(DATA, out, protocol=replace(PROTOCOL, steps=10))
    with pytest.raises(BeyondError, match="unknown parts"):
        run(DATA, out, protocol=PROTOCOL, parts={"best": 1.0})
    with pytest.raises(BeyondError, match="needs select"):
        run(DATA, out.with_name("new.json"), protocol=PROTOCOL, parts={"refine": 1.0})


def test_images_are_left_as_they_are_where_the_search_would_rather(finished):
    _, results = finished
    ranking = [{**FIXED.as_dict(), "deskew": share} for share in (0.0, 1.0)]
    found = model_parts.deskewed(
        Bench(PROTOCOL, DATA, torch.device("cpu"), None, False, 0.0, print),
        {"deskewed-select": {"ranking": ranking}},
    )
    assert found == {"complete": True, "rows": []}
    chosen = results["parts"]["deskewed-select"]["ranking"]
    assert {row["deskew"] for row in chosen} >= {0.0, 0.5, 1.0}


def test_a_local_prior_is_a_gaussian_whose_variance_depends_on_the_place():
    widths, variance = torch.tensor([0.3, 0.0]), torch.tensor([0.5, 2.0])
    prior = Local(variance, widths).for_tensor(torch.zeros(4, 36, dtype=torch.float64))
    theta = torch.linspace(-1, 1, 2 * 4 * 36, dtype=torch.float64).reshape(2, 4, 36)
    theta.requires_grad_()
    sd = prior.every.sqrt()
    expected = torch.distributions.Normal(torch.zeros_like(sd), sd).log_prob(theta).sum((1, 2))
    torch.testing.assert_close(prior.log_density(theta), expected)
    (slope,) = torch.autograd.grad(prior.log_density(theta).sum(), theta)
    torch.testing.assert_close(prior.gradient(theta), slope)
    torch.testing.assert_close(prior.every.mean(2), variance.double()[:, None].expand(2, 4))
    assert (prior.every[1] == 2).all()
    corner = prior.every[0, :, 0]
    assert corner.argmax() == 0  # the lattice's first unit is the nearest to the first pixel
    assert prior.every[0].argmax(1).tolist() == [7, 10, 25, 28]  # places of a 2 x 2 lattice
    keys = random.origin(0, random.NOISE, torch.arange(2))
    draws = prior.sample(keys, (4, 36), torch.float64) / sd
    assert draws.std().item() == pytest.approx(1, abs=4 / (2 * draws.numel()) ** 0.5)
    torch.testing.assert_close(prior.precision, (1 / prior.every).mean((1, 2)))
    with pytest.raises(ValueError, match="must know its tensor"):
        Local(variance, widths).gradient(theta)
    with pytest.raises(ValueError, match="square"):
        envelope(2, 5, 0.1)


def test_a_new_file_begins_with_the_searches_of_another(tmp_path, finished):
    out, known = finished
    new = tmp_path / "new.json"
    found = run(DATA, new, protocol=PROTOCOL, parts={"noisy-select": 1e9}, searches=out)
    assert found["searches"] == out.name
    assert list(found["parts"]) == ["select", "refine", "local-select", "noisy-select"]
    assert found["parts"]["refine"] == json.loads(out.read_text())["parts"]["refine"]
    ranking, before = (of["parts"]["noisy-select"]["ranking"] for of in (found, known))
    assert [row["score"] for row in ranking] == pytest.approx([row["score"] for row in before])
    other = replace(PROTOCOL, batch_size=10)
    with pytest.raises(BeyondError, match="other settings: batch_size"):
        run(DATA, tmp_path / "a.json", protocol=other, parts={}, searches=out)
    with pytest.raises(BeyondError, match="no searches to begin with"):
        run(DATA, tmp_path / "b.json", protocol=PROTOCOL, parts={}, searches=tmp_path / "none")


def test_an_image_that_no_draw_has_right_does_not_decide_a_search():
    network = mlp(36, 3, (4,))
    x, y = DATA.train_x[:1], torch.tensor([1])
    params = {k: torch.zeros(2, *p.shape) for k, p in network.named_parameters()}
    params["2.bias"][:, 0] = 150.0  # where float32 has a probability of exactly 0
    p = ViewScorer(network, {"scored": (x, y)}, [Inputs()] * 2).probabilities(params, x)
    assert nll(p.mean(0), y) == pytest.approx(150)
    assert nll(resolved(p.mean(0)), y) == pytest.approx(math.log(3e4))
    assert torch.allclose(resolved(p.mean(0)).sum(-1), torch.ones(1).double())


def test_a_table_goes_through_the_same_procedure_without_a_length(tmp_path):
    x, y = images(150, 3)
    numpy.savez(
        tmp_path / "t.npz", x=50 * x[:120, :5], y=y[:120] + 4, x_test=50 * x[120:, :5],
        y_test=y[120:] + 4,
    )  # fmt: skip
    dataset, protocol = problem(str(tmp_path / "t.npz"), PROTOCOL)
    assert dataset.train_x.shape == (120, 5)
    assert dataset.train_x.std(0).mean() == pytest.approx(1, abs=0.01)
    assert dataset.num_classes == 3
    found = run(dataset, tmp_path / "rows.json", protocol=replace(protocol, steps=60))
    assert list(found["parts"]) == list(PARTS)
    assert {row["length"] for row in found["parts"]["select"]["ranking"]} == {0.0}
    labels = [row["label"] for row in found["rows"]]
    assert "one chain, one variance for all layers" in labels
    assert not any("length" in label for label in labels)
    numpy.savez(tmp_path / "bad.npz", x=x[:20], y=y[:20], x_test=x[:2], y_test=y[:2] + 9)
    with pytest.raises(DataError, match="every class of the test rows"):
        problem(str(tmp_path / "bad.npz"), PROTOCOL)


def test_a_shorter_run_is_in_proportion():
    short = Protocol().shortened(6_000)
    assert (short.steps, short.burn_in, short.select_steps) == (6_000, 1_000, 3_000)
    assert Protocol().fit_to(60_000) == Protocol()
    assert Protocol().fit_to(6_000).step_size.value(0) == pytest.approx(2e-3)
    assert (short.select_burn_in, short.thin, short.select_thin) == (1_000, 10, 5)


def test_parts_and_their_seconds_on_the_command_line(capsys, tmp_path):
    assert command.chosen_parts("select=3,final", None, "cuda") == {"select": 3.0, "final": 120.0}
    assert command.chosen_parts("final", 9.0, "cpu") == {"final": 9.0}
    with pytest.raises(BeyondError, match="unknown part 'x'"):
        command.chosen_parts("x", None, "cpu")


def test_the_rows_on_a_page(finished, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- rows:begin -->\nold\n<!-- rows:end -->\nb\n")
    monkeypatch.setattr(command, "run", lambda *_, **__: finished[1])
    monkeypatch.setattr(command, "problem", lambda name, protocol, **_: (DATA, protocol))
    assert command.main(["--out", str(tmp_path / "rows.json"), "--toy", "--page", str(page)]) == 0
    lines = page.read_text().splitlines()
    assert lines[-2:] == ["<!-- rows:end -->", "b"]
    assert sum(line.startswith("| ") for line in lines) == 1 + len(finished[1]["rows"])
    assert "old" not in lines
    assert any(line.startswith("| one chain") and " ± " in line for line in lines)


def test_a_part_all_of_whose_chains_diverge_says_so_and_the_others_go_on(
    tmp_path, finished, monkeypatch
):
    out, _ = finished

    def lost(bench, part, *rest, **options):
        raise DivergenceError(f"all chains of {part} became non-finite")

    monkeypatch.setattr(model_parts, "sample", lost)
    parts = {"local": 1e9, "overdamped-select": 1e9}
    found = run(DATA, tmp_path / "a.json", protocol=PROTOCOL, parts=parts, searches=out)
    assert found["parts"]["local"]["diverged"] == ["all chains of local became non-finite"]
    assert found["parts"]["local"]["rows"] == []
    assert found["parts"]["overdamped-select"]["complete"]
