"""The benchmark at toy size: what it writes, whom it lists, and that all do the same job."""

from __future__ import annotations

import gc
import json
import math
import statistics
import sys

import pytest
import torch

from lab.speed import (
    BenchError,
    Settings,
    growth,
    measure,
    memory,
    plain,
    run,
)
from lab.speed.contender import Contender, Ready, Unavailable
from lab.speed.contenders import OURS, PEERS, PLAIN, REFERENCE, contenders
from lab.speed.plot import plot
from lab.speed.problems import problem
from lab.speed.run import MEASURES, _add
from lab.speed.show import plain as plain_text
from natural_langevin.cli.experiments import bench
from natural_langevin.cli.experiments.bench_networks import BUILT
from natural_langevin.cli.experiments.origin import origin
from natural_langevin.dynamics import frame

SIZES = {"inputs": 12, "hidden": (16, 16), "batch_size": 8, "num_data": 64}
TOY = Settings(
    device="cpu", repeats=3, compile=False, threads=1, block_seconds=1e-3, networks=("mlp",),
    chains=(1,), sections=("steps",), sizes=SIZES,
)  # fmt: skip


def toy(**changes):
    return Settings(**(vars(TOY) | changes))


def silent(line: str) -> None:
    pass


@pytest.fixture(scope="module", autouse=True)
def _hasty_compiler():
    """What is compiled here runs for milliseconds: XLA need not make it fast."""
    import blackjax  # noqa: F401
    import jax
    import torch._dynamo  # noqa: F401

    jax.config.update("jax_disable_most_optimizations", True)
    gc.freeze()  # they have many objects, and benchmarks collect garbage before every repeat
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One run of everything that needs no compiler and no second process."""
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth, "CHAINS", {"cpu": (1, 2)})
        # Normals made ahead are one buffer for all chains of a small network, and no matter of the
        # paper's: beside 650 parameters its rounding down would count as a chain's own memory.
        patch.setattr(frame, "AHEAD", 0)
        sections = ("steps", "memory", "growth")
        found = run(toy(sections=sections), out=path)
    assert json.loads(path.read_text()) == json.loads(json.dumps(found))
    return json.loads(path.read_text())


def rows(results, network="mlp"):
    (part,) = [p for p in results["sections"]["steps"]["networks"] if p["network"] == network]
    return {(r["name"], r["chains"]): r for r in part["rows"]}


def test_the_json_says_what_was_run_where(results):
    assert results["format"] == 2
    assert results["config"]["seed"] == 0
    assert results["config"]["threads"] == 1
    assert {"cpu", "cores", "device"} <= set(results["machine"])
    assert {"torch", "jax", "blackjax", "posteriors"} <= set(results["versions"])
    assert "section latency" in results["left_out"]
    assert "everything compiled with torch.compile" in results["left_out"]


def test_everybody_is_listed_with_all_repeats(results):
    found = rows(results)
    assert {name for name, _ in found} == {
        c.name for c in (*PLAIN, *PEERS, *OURS) if "mlp" in c.networks
    }
    for (name, chains), row in found.items():
        if "compiled" in name:
            assert row["status"] == "left out"
            assert "--no-compile" in row["reason"]
        else:
            assert row["status"] == "measured", row
            assert len(row["microseconds"]) == 3
            assert min(row["microseconds"]) > 0
            assert row["page_faults_per_step"]["min"] >= 0
            assert row["note"] == ""
            assert chains == 1


def test_several_counts_of_chains():
    """Of those alone who have chains; the peers' own are below, since XLA compiles for seconds."""
    found = rows(run(toy(chains=(1, 2), only=("Euclidean", "randn"), repeats=1)))
    assert {n for name, n in found if name == "Euclidean"} == {1, 2}
    assert {n for name, n in found if "randn" in name} == {1}


def test_ratios_are_quotients_of_medians(results):
    found = rows(results)
    reference = statistics.median(found[REFERENCE, 1]["microseconds"])
    for row in found.values():
        if row["status"] == "measured":
            middle = statistics.median(row["microseconds"])
            assert row["microseconds_per_chain_step"]["median"] == middle
            assert row["ratio"] == pytest.approx(middle / reference, rel=1e-12)
    assert found[REFERENCE, 1]["ratio"] == 1


def test_a_chain_step_is_a_chains_share_of_the_time(monkeypatch):
    """With a clock that is known: 2 ms for every step of four chains."""
    now = [0.0]

    def advance(count):
        now[0] += 0.002 * count

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    sleeper = Contender("sleeper", lambda p, c: Ready(advance, torch.Tensor), "", chains=4)
    task = problem("mlp", device="cpu", **SIZES)
    (row,) = measure.make_ready(task, [sleeper], silent)
    measure.interleave(task, [row], repeats=3, seconds=0.05, say=silent)
    assert row.block == 25  # 50 ms
    assert row.times == pytest.approx([500.0] * 3)


def test_every_repeat_starts_one_further(results):
    (part,) = results["sections"]["steps"]["networks"]
    orders = part["orders"]
    assert len(orders) == 3
    assert orders[1] == orders[0][1:] + orders[0][:1]
    assert orders[2] == orders[0][2:] + orders[0][:2]


def test_a_missing_peer_is_listed_as_missing(monkeypatch):
    for package in ("posteriors", "posteriors.sgmcmc", "blackjax"):
        monkeypatch.setitem(sys.modules, package, None)
    listed = {c.name: c for c in contenders("mlp", (1,))}
    assert "jax SGLD" in listed  # blackjax's formula, by hand
    task = problem("mlp", device="cpu", **SIZES)
    wanted = [listed["posteriors SGLD"], listed["blackjax SGLD"]]
    for row in measure.make_ready(task, wanted, silent):
        out = measure.summary(row, None)
        assert out["status"] == "not installed"
        assert "natural-langevin[bench]" in out["reason"]


def test_a_network_without_rules_is_said_to_have_none(monkeypatch):
    """Whatever rules there are: a refusal at construction is an answer, not the end of the run."""

    def refuse(*args, **options):
        raise TypeError("no Fisher rule for 0 (Conv2d)")

    monkeypatch.setattr(bench, "Langevin", refuse)
    task = problem("cnn", device="cpu", num_data=20, batch_size=2)
    row = measure.make_ready(task, [OURS[-1]], silent)[0]
    assert (row.status, row.ready) == ("no rule", None)
    assert "Conv2d" in row.reason


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_the_other_networks_are_measured_or_refused(name):
    found = run(toy(networks=(name,), sizes={"num_data": 20, "batch_size": 2}, repeats=2))
    listed = rows(found, name)
    assert listed[REFERENCE, 1]["status"] == "measured"
    assert {"QDOP exact", "QDOP expand", "QDOP exact, compiled"} <= {n for n, _ in listed}


def test_a_contender_that_breaks_does_not_end_the_run():
    def broken(task, chains):
        raise RuntimeError("out of order")

    task = problem("mlp", device="cpu", **SIZES)
    rows = measure.make_ready(task, [Contender("broken", broken, ""), PLAIN[0]], silent)
    assert [row.status for row in rows] == ["failed", "measured"]
    assert "out of order" in rows[0].reason


def test_a_section_that_breaks_is_said_to_have_failed(monkeypatch, tmp_path):
    def broken(settings, say):
        raise RuntimeError("out of order")

    monkeypatch.setitem(MEASURES, "memory", broken)
    out = tmp_path / "bench.json"
    found = run(toy(sections=("memory", "steps"), only=(REFERENCE,), repeats=1), out=out)
    assert found["failed"] == {"memory": "RuntimeError: out of order"}
    assert rows(json.loads(out.read_text()))[REFERENCE, 1]["ratio"] == 1
    assert "memory FAILED: RuntimeError: out of order" in plain_text(found)


@pytest.mark.parametrize(
    ("contender", "chains"),
    [(PLAIN[2], 1), (PEERS[0], 1), (PEERS[1], 2), (PEERS[2], 1), (OURS[0], 2)],
    ids=lambda value: getattr(value, "name", value),
)
def test_everybody_samples_at_the_same_temperature(contender, chains):
    """40 small steps are noise above all: their spread is sqrt(2 eta 40 / N) for everybody.

    650 parameters give it a relative standard error of 1/sqrt(1300) = 2.8 %; the bound is 5 of
    them, which a forgotten factor of two (41 %), N or chain exceeds by far.
    """
    task = problem("mlp", device="cpu", **SIZES)
    if contender is OURS[0]:  # Euclidean, without its compiler
        from functools import partial

        from lab.speed import ours

        ready = partial(ours.langevin, name="Euclidean", compile=False)(task, chains)
    else:
        ready = contender.build(task, chains)
    before = ready.position().clone()
    ready.advance(40)
    moved = (ready.position() - before).double()
    assert len(moved) == 650 == task.parameters
    expected = math.sqrt(2 * bench.STEP_SIZE * 40 / task.num_data)
    assert abs(moved.std() / expected - 1) < 5 / math.sqrt(2 * 650)


def test_compiled_sgd_is_sgd(monkeypatch):
    """The function that is compiled, here left as it is, takes the same steps as the optimizer."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    task = problem("mlp", device="cpu", **SIZES)
    for module in (plain, bench):
        monkeypatch.setattr(module, "STEP_SIZE", 0.1)
    start = plain.flat(task.build().parameters())
    one, other = plain.compiled_sgd(task), plain.as_in_bench(task, build=bench.sgd)
    one.advance(5)
    other.advance(5)
    assert (one.position() - start).abs().max() > 1e-2
    torch.testing.assert_close(one.position(), other.position(), rtol=0, atol=1e-6)


def test_memory_equations():
    """T = 1000 + c (28 P + 6 B), exactly recovered."""
    points = [
        {"chains": c, "batch_size": b, "parameters": 50, "state_bytes": 16 * 50 * c,
         "peak_bytes": 1000 + c * (28 * 50 + 6 * b)}
        for c, b in ((1, 100), (4, 100), (1, 50), (4, 50))
    ]  # fmt: skip
    found = memory.derive(points)
    assert found["state_bytes_per_parameter"] == 16
    assert found["activation_bytes_per_chain"] == pytest.approx(600)
    assert found["beyond_activations_bytes_per_parameter"] == pytest.approx(28)


def test_memory_counts_at_least_the_state(results):
    found = results["sections"]["memory"]
    # theta, mean and J_ii for 650 parameters, J_0i for the 608 weights; for each of four chains the
    # step at which it diverged, and one step counter: 4 and 8 bytes.
    assert found["state_bytes_per_parameter"] == (4 * (3 * 650 + 608) + 8 + 8 / 4) / 650
    assert found["beyond_activations_bytes_per_parameter"] > found["state_bytes_per_parameter"]


def test_the_profiler_sees_a_temporary():
    def advance(count):
        for _ in range(count):
            torch.ones(250_000).add(1)  # two megabytes alive at a time

    peak = memory._peak_cpu(torch.device("cpu"), advance) - memory._alive()
    assert 2_000_000 <= peak < 2_100_000


def test_growth_changes_one_thing_at_a_time(results):
    axes = results["sections"]["growth"]["axes"]
    assert list(axes) == ["width", "depth", "batch", "chains"]
    assert [p["size"] for p in axes["width"]["points"]] == [4, 8, 16, 32]
    assert [p["hidden"] for p in axes["depth"]["points"]] == [[16], [16, 16], [16] * 4]
    assert [p["batch_size"] for p in axes["batch"]["points"]] == [2, 8, 32]
    for part in axes.values():
        assert all(p["qdop"]["status"] == "measured" for p in part["points"])
        assert math.isfinite(part["exponent"])


def test_exponent_of_a_known_law():
    rows = [
        {"size": s, "qdop": {"status": "measured", "chains": 1,
                             "microseconds_per_chain_step": {"median": 3.0 * s**1.5}}}
        for s in (1, 2, 8)
    ]  # fmt: skip
    assert growth.exponent(rows) == pytest.approx(1.5)


def test_latency_in_fresh_interpreters():
    found = run(toy(sections=("latency",), quick=True))["sections"]["latency"]
    assert 0 < found["import_beyond_torch_seconds"]["median"] < 60
    (times,) = found["first_sample"].values()
    assert times["first"]["median"] > times["data"]["median"] > 0  # with torch's import in both
    assert 0 < times["second"]["median"] < times["first"]["median"]
    assert 0 < times["new"]["median"] < times["first"]["median"]


def test_the_table_and_the_picture(results, tmp_path):
    text = plain_text(results)
    shown = next(line for line in text.splitlines() if line.startswith("| QDOP, eager"))
    assert f"{rows(results)['QDOP, eager', 1]['ratio']:.2f}" in shown
    assert "left out" in text
    assert "bytes per parameter" in text
    path = tmp_path / "picture.png"
    assert plot(results, path) == str(path)
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"device": "warp"}, "unknown device"),
        ({"device": "meta"}, "cpu and cuda"),
        ({"sections": ("speed",)}, "unknown section speed"),
        ({"networks": ("rnn",)}, "unknown network rnn"),
        ({"precision": "low"}, "unknown precision low"),
        ({"chains": (0,)}, "at least 1"),
        ({"repeats": -1}, "repeats"),
    ],
)
def test_bad_settings_name_the_remedy(changes, part):
    with pytest.raises(BenchError, match=part):
        toy(**changes).resolved()


@pytest.mark.parametrize("section", ["steps", "samples"])
def test_only_nobody_is_refused_with_the_names_that_there_are(section):
    with pytest.raises(BenchError, match=r"--only nothing: no contender's name holds that.*SGLD"):
        run(toy(sections=(section,), only=("SGLD", "nothing")))


@pytest.mark.parametrize(
    "content", ["{", "[]", "null", '{"kind": "bench"}', "\xff"], ids=lambda c: repr(c)
)
def test_a_broken_file_is_not_resumed(content, tmp_path):
    out = tmp_path / "bench.json"
    out.write_bytes(content.encode("latin-1"))
    with pytest.raises(BenchError, match="another --out"):
        run(toy(sections=("steps",), resume=True, repeats=1), out=out)
    found = json.dumps({"kind": "bench", "machine": origin("cpu")["machine"], "pieces": []})
    out.write_text(found)
    with pytest.raises(BenchError, match="another --out"):
        run(toy(sections=("steps",), resume=True, repeats=1), out=out)


def test_unavailable_keeps_its_reason_on_one_line():
    assert Unavailable("no rule", "a\n  b").reason == "a b"


def test_samplers_from_the_same_starts_stand_side_by_side():
    """Measured by two calls; from other starts they would not be comparable."""
    sections = {}
    parts = [(0.2, "a", 1), (0.2, "b", 2), (0.2, "a", 3), (0.3, "b", 4)]
    seen = []
    for level, name, ess in parts:
        found = {"reference_loss": level, "rows": [{"name": name, "ess": ess}]}
        _add(sections, "samples", found)
        seen.append([(row["name"], row["ess"]) for row in sections["samples"]["rows"]])
    assert seen == [[("a", 1)], [("a", 1), ("b", 2)], [("b", 2), ("a", 3)], [("b", 4)]]


@pytest.mark.parametrize("name", ["lstm", "resnet18", "gpt"])
def test_large_networks_have_data_that_fit_them(name: str) -> None:
    """On the meta device, where nothing is computed; and loops of one's own take part."""
    one = problem(name, device="cpu", num_data=4, batch_size=2)
    with torch.device("meta"):
        network = BUILT[name]()
    x = one.x.to("meta")
    outputs = network(x)
    assert outputs.shape[:-1] == one.y.shape
    assert int(one.y.max()) < outputs.shape[-1]
    assert {"Adam, eager", "IVON", "optimizer QDOP"} <= {c.name for c in contenders(name, [1])}
