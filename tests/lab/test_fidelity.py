"""The comparison with HMC at toy size, on synthetic images; the shipped predictions themselves."""

import dataclasses
import itertools
import json
from pathlib import Path

import pytest
import torch

from lab.fidelity import chain, table
from lab.fidelity.__main__ import main
from lab.fidelity.chain import Flat, Settings, kept, start
from lab.fidelity.contenders import CONTENDERS
from lab.fidelity.dropout import MASKS, Descent
from lab.fidelity.problem import (
    Problem,
    cifar,
    hmc_predictions,
    in_colour,
    normalised,
    pixels,
    scores,
    synthetic,
)
from lab.fidelity.run import FidelityError, run
from lab.fidelity.shifted import as_results, shifted, with_table
from lab.models import resnet_frn
from lab.shift import table as shift_table
from natural_langevin.data import DataError
from triton_interpreter import run_script

# No time at all: one step per look, whatever the machine's pace.
TOY = Settings(seconds=1e-9, pilot=0.0, batch_size=20, looks=4, depth=8, width=2)


@pytest.fixture(autouse=True)
def _a_clock_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is late is broken off, by seconds: every look at this clock is one tick."""
    ticks = itertools.count()
    monkeypatch.setattr(chain, "now", lambda device: 0.05 * next(ticks))


def test_the_reference_scores_what_was_published() -> None:
    p, y = hmc_predictions()
    found = scores(p, Problem(p, y, p, y, p, ""))
    assert found["accuracy"] == pytest.approx(0.9144)
    assert found["nll"] == pytest.approx(0.277, abs=5e-4)
    assert (found["agreement"], found["total_variation"]) == (1.0, 0.0)


def test_the_network_is_the_published_one() -> None:
    network = resnet_frn()
    shapes = [tuple(p.shape) for n, p in network.named_parameters() if n.endswith("conv.weight")]
    assert len(shapes) == 21
    assert shapes[0] == (16, 3, 3, 3)
    assert shapes.count((64, 64, 3, 3)) == 5
    assert network(torch.rand(2, 32, 32, 3)).shape == (2, 10)


def test_strided_layers_pad_at_the_end_as_jax_does() -> None:
    """With "SAME" the first patch of a halved image begins at its first pixel."""
    layer = resnet_frn(depth=8, width=2).blocks[1].first
    x = torch.rand(1, 2, 8, 8)
    padded = torch.nn.functional.pad(x, layer.pad)
    first = (padded[0, :, :3, :3] * layer.conv.weight[0]).sum() + layer.conv.bias[0]
    assert torch.allclose(layer.conv(padded)[0, 0, 0, 0], first, atol=1e-5)
    assert layer(x).shape == (1, 4, 4, 4)


def test_a_flat_network_is_the_same_network() -> None:
    network = resnet_frn(depth=8, width=2)
    x = torch.rand(3, 8, 8, 3)
    expected = network(x)
    flat = Flat(network)
    assert torch.equal(flat(x), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reduced, both = flat(x), network(x)
    assert not torch.equal(reduced.float(), expected)
    assert torch.equal(reduced, both), "converted all at once, the weights are the same"


def test_a_metric_starts_at_the_priors_scale() -> None:
    settings = dataclasses.replace(TOY, width=8)
    parameters = start(CONTENDERS["qdop"], settings).named_parameters()
    widths = [float(p.detach().std()) for n, p in parameters if p.ndim == 4]
    assert widths == pytest.approx([0.2**0.5] * len(widths), rel=1e-3)


def test_every_contender_at_toy_size_and_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = dataclasses.replace(CONTENDERS["ensemble"], members=2)
    monkeypatch.setitem(CONTENDERS, "ensemble", few)
    problem, out, said = synthetic(60), tmp_path / "f.json", []
    first = run(problem, out, settings=TOY, names=["qdop", "ensemble"], say=said.append)
    assert sum("agreement" in line for line in said) == 2
    results = run(problem, out, settings=TOY, say=said.append)
    finished = [line for line in said if "agreement" in line]
    assert len(finished) == len(CONTENDERS), "what was done is not done again"
    assert results["rows"]["qdop"] == first["rows"]["qdop"]
    assert json.loads(out.read_text()) == results
    for name, row in results["rows"].items():
        last = row["looks"][-1]
        assert row["done"]
        assert 0 <= last["agreement"] <= 1
        assert 0 < last["total_variation"] < 1
        few = {"ensemble": 2, "dropout": MASKS}
        assert last["draws"] == few.get(name, len(row["looks"]))
    with pytest.raises(FidelityError, match="other settings"):
        run(problem, out, settings=dataclasses.replace(TOY, seed=1))
    with pytest.raises(FidelityError, match="no contender 'adam'"):
        run(problem, out, settings=TOY, names=["adam"])
    table.plot(results, tmp_path / "f.png")
    assert (tmp_path / "f.png").stat().st_size > 1000
    page = table.with_table("before\n<!-- fidelity:begin -->\n<!-- fidelity:end -->after", results)
    assert page.count("| underdamped, QDOP |") == 1
    assert page.endswith("<!-- fidelity:end -->after")


@pytest.mark.parametrize("name", ["fidelity-h200", "fidelity-long-h200"])
def test_the_page_shows_the_committed_runs(name: str) -> None:
    root = Path(__file__).parents[2]
    page = (root / "lab" / "notes" / "fidelity.md").read_text(encoding="utf-8")
    results = json.loads((root / "results" / f"{name}.json").read_text(encoding="utf-8"))
    assert table.with_table(page, results) == page
    for row in results["rows"].values():
        assert f"{row['looks'][-1]['agreement']:.4f}" in page


def test_the_same_draws_on_shifted_images() -> None:
    settings, ensemble = dataclasses.replace(TOY, shift=10), CONTENDERS["ensemble"]
    networks = [start(ensemble, settings, member) for member in range(2)]
    draws = [{k: p.detach() for k, p in one.named_parameters()} for one in networks]
    problem = synthetic(20)._replace(foreign={"mnist": torch.rand(30, 8, 8, 3)})
    row = {"title": ensemble.title, "looks": [{"seconds": 1.0}, {"seconds": 2.0}]}
    row["shift"] = shifted(ensemble, problem, settings, draws)
    row["shift_of_one"] = shifted(ensemble, problem, settings, draws[:1])
    found = as_results({"settings": {"foreign": ["mnist"]}, "rows": {"ensemble": row}})
    assert [name for name in shift_table.columns(found) if "AUROC" in name] == [
        "AUROC, mnist", "AUROC, shuffled",
    ]  # fmt: skip
    assert [row["members"] for row in found["rows"].values()] == [2, 1]
    assert [row[0] for row in shift_table.rows(found)] == ["deep ensemble", "one network"]
    assert [row[-1] for row in shift_table.rows(found)] == ["2", "1"]
    one = found["rows"]["ensemble shift_of_one"]["foreign"]["shuffled"]
    assert one["epistemic"] == 0.5, "a single network has no epistemic uncertainty"
    assert torch.allclose(normalised(pixels(problem.x)), problem.x, atol=1e-5)


def test_the_page_of_shifts_shows_the_committed_run() -> None:
    root = Path(__file__).parents[2]
    page = (root / "lab" / "notes" / "shift.md").read_text(encoding="utf-8")
    results = (root / "results" / "shift-cifar-h200.json").read_text(encoding="utf-8")
    assert with_table(page, json.loads(results)) == page


def test_the_command_writes_the_table_of_shifts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "shift.md"
    page.write_text("<!-- shift-cifar:begin -->\n<!-- shift-cifar:end -->after")
    size = ["--depth=8", "--width=2", "--batch-size=20", "--seconds=1e-9", "--pilot=0", "--looks=2"]
    asked = ["--data=synthetic", "--shift=5", f"--shift-page={page}", "--device=cpu"]
    asked += [f"--out={tmp_path / 'f.json'}", f"--shift-plot={tmp_path / 'shift.png'}"]
    main(["rmsprop", *size, *asked])
    written = page.read_text()
    assert written.count("| underdamped, RMSProp |") == 1
    assert "AUROC, shuffled" in written
    assert written.endswith("<!-- shift-cifar:end -->after")
    assert (tmp_path / "shift.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert shown.count("underdamped, RMSProp") == 2
    assert "AUROC, shuffled" in shown


def test_dropout_descends_as_sgd_with_momentum_does_and_its_masks_differ() -> None:
    """With nothing dropped the loop is torch's SGD on the same batches; otherwise every pass has
    masks of its own, also in predictions."""
    problem, contender = synthetic(40), CONTENDERS["dropout"]
    whole = dataclasses.replace(contender, dropout=1e-12)
    descent = Descent(whole, problem, TOY)
    rates = [0.1, 0.05, 0.02]
    descent.run(rates)
    network, order = start(whole, TOY), torch.Generator().manual_seed(0)
    decay = 1 / (len(problem.y) * 0.2)
    sgd = torch.optim.SGD(network.parameters(), lr=1.0, weight_decay=decay)
    velocity = torch.zeros_like(network.theta)
    batches = [*torch.randperm(40, generator=order).split(20)]
    batches += [*torch.randperm(40, generator=order).split(20)]
    for rate, rows in zip(rates, batches, strict=False):
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(network(problem.x[rows]), problem.y[rows]).backward()
        before = network.theta.detach().clone()
        sgd.step()  # of rate 1: the gradient with its decay
        gradient = before - network.theta.detach()
        velocity = 0.9 * velocity - rate * gradient
        network.theta.data = before + velocity
    assert torch.allclose(descent.network.theta, network.theta, atol=1e-5)
    dropped = start(contender, TOY)
    assert not torch.equal(dropped(problem.x), dropped(problem.x))


def test_masks_on_shifted_images_follow_from_the_seed() -> None:
    """Whatever torch's own random numbers are by then, which stay as they were."""
    settings, dropout = dataclasses.replace(TOY, shift=10), CONTENDERS["dropout"]
    theta = {k: p.detach() for k, p in start(dropout, settings).named_parameters()}
    problem, found = synthetic(20), []
    for seed in (0, 0, 1):
        asked = dataclasses.replace(settings, seed=seed)
        before = torch.rand(1), torch.get_rng_state()
        found.append(shifted(dropout, problem, asked, [theta] * 3))
        assert torch.equal(torch.get_rng_state(), before[1])
    assert found[0] == found[1]
    assert found[0]["clean"] != found[2]["clean"]
    assert found[0]["clean"]["epistemic"] > 0, "masks of one prediction differ"


def test_foreign_images_have_the_shape_of_these() -> None:
    grey = torch.rand(2, 784)
    seen = in_colour(grey)
    assert seen.shape == (2, 32, 32, 3)
    assert torch.equal(seen[:, 2:30, 2:30, 1].flatten(1), grey)
    with pytest.raises(DataError, match="no foreign data set 'svhn'"):
        cifar(foreign=["svhn"])


def test_the_pilot_chooses_on_training_images_alone(tmp_path: Path) -> None:
    problem = synthetic(60)
    wrong = problem._replace(test_y=(problem.test_y + 1) % 10)  # would mislead who looks at it
    settings = dataclasses.replace(TOY, pilot=0.05)
    row = run(wrong, tmp_path / "f.json", settings=settings, names=["sghmc"])["rows"]["sghmc"]
    assert len(row["pilot"]) == 3
    chosen = min(row["pilot"], key=lambda p: p["nll"])["step_size"]
    assert row["step_size"] == CONTENDERS["sghmc"].step_size(
        chosen, 1000 * settings.seconds / row["step_milliseconds"]
    )
    held_out = problem.pilot()
    assert len(held_out.x) + len(held_out.test_x) == len(problem.x)
    assert torch.equal(torch.cat([held_out.x, held_out.test_x]), problem.x)


def test_several_chains_share_the_time_and_are_pooled(tmp_path: Path) -> None:
    settings = dataclasses.replace(TOY, chains=2, looks=6)
    row = run(synthetic(60), tmp_path / "f.json", settings=settings, names=["rmsprop"])["rows"]
    looks = row["rmsprop"]["looks"]
    assert [look["draws"] for look in looks] == [1, 2, 3, 4, 4, 4, 5, 6, 7, 8]
    assert looks[-1]["epochs"] == pytest.approx(2 * 6 / 3), "six steps of 20 of 60 images, twice"
    one = dataclasses.replace(settings, chains=1)
    alone = run(synthetic(60), tmp_path / "1.json", settings=one, names=["rmsprop"])["rows"]
    first = [look["total_variation"] for look in alone["rmsprop"]["looks"]]
    assert [look["total_variation"] for look in looks[:4]] == first
    assert looks[-1]["total_variation"] != looks[3]["total_variation"]
    results = json.loads((tmp_path / "f.json").read_text())
    assert [cells[-1] for cells in table.by_chains(results)] == ["4", "8"]


def test_a_run_that_was_broken_off_goes_on_after_its_last_whole_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, problem = dataclasses.replace(TOY, chains=3), synthetic(60)

    def looks(file: str) -> list[dict[str, float]]:
        rows = run(problem, tmp_path / file, settings=settings, names=["rmsprop"])["rows"]
        return [
            {key: value for key, value in look.items() if key != "seconds"}
            for look in rows["rmsprop"]["looks"]
        ]

    whole = looks("whole.json")
    left = 5  # of ten: in the second chain; the first call is the reference's own

    def interrupted(*arguments: object) -> dict[str, float]:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return scores(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("lab.fidelity.run.scores", interrupted)
        with pytest.raises(KeyboardInterrupt):
            looks("part.json")
    begun = json.loads((tmp_path / "part.json").read_text())["rows"]["rmsprop"]
    assert [look["chain"] for look in begun["looks"]] == [1, 1, 1, 2]
    assert looks("part.json") == whole, "the second chain once more, and the third"
    ended = json.loads((tmp_path / "part.json").read_text())["rows"]["rmsprop"]
    assert ended["step_milliseconds"] == begun["step_milliseconds"], "planned as it began"
    assert ended["looks"][:3] == begun["looks"][:3]


def test_step_sizes_fall_with_the_cube_root_of_the_time() -> None:
    rmsprop, ensemble = CONTENDERS["rmsprop"], CONTENDERS["ensemble"]
    assert rmsprop.step_size(1e-4, 15_000) == 1e-4
    assert rmsprop.step_size(1e-4, 120_000) == pytest.approx(0.5e-4)
    assert ensemble.step_size(0.1, 120_000) == 0.1


def test_iterates_are_kept_late_in_every_cycle() -> None:
    cyclical = CONTENDERS["sghmc"]
    shares = [look / 40 for look in range(1, 41) if kept(cyclical, look / 40)]
    assert len(shares) == 16
    assert shares[0] == 0.175


def test_pixels_are_normalised_as_in_the_competition() -> None:
    assert torch.allclose(normalised(torch.tensor([0.49, 0.48, 0.44])), torch.zeros(3))
    assert torch.allclose(normalised(torch.tensor([0.69, 0.68, 0.64])), torch.ones(3), atol=1e-6)


def test_the_kernels_of_the_residual_network_in_their_interpreter() -> None:
    script = Path(__file__).with_name("interpreted_kernels.py")
    assert run_script(script).endswith("agrees\n")
