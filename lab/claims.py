"""Every claim of the pages with its figure, the file it is from and the command that makes it.

    python -m lab.claims            # writes docs/evidence.md, and the tables of other pages
    python -m lab.claims --check    # exit code 1 where a page is out of date

A claim reads one file under results/ and fills its sentence from it; nothing here is typed in but
the sentences. ``PARTS`` are tables of other pages, between their markers.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.defaults import twenty_table
from lab.fidelity.run import PUBLISHED as FIDELITY
from lab.how_long import NETWORKS
from lab.pages import markdown, with_part
from lab.uci import table as uci
from lab.uci.data import TABLES
from natural_langevin.recipe.settings import Settings
from natural_langevin.run.problem import standard_units
from natural_langevin.run.problem.problem import LOADER_ROWS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence.md"
Values = dict[str, Any]


@functools.cache
def results(name: str) -> Any:
    """A file under results/, read once."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Claim:
    """A heading (its anchor), a sentence with places for figures, where they come from, and a
    table below it where one says more."""

    title: str
    text: str
    file: str
    command: str
    read: Callable[[Any], Values]
    table: Callable[[Any], str] | None = None

    @property
    def values(self) -> Values:
        """The figures, by name."""
        return self.read(results(self.file))

    @property
    def anchor(self) -> str:
        return self.title.lower().replace("'", "").replace(",", "").replace(" ", "-")

    def section(self) -> str:
        """Markdown of the evidence page."""
        parts = [f"## {self.title}", self.text.format(**self.values)]
        if self.table is not None:
            parts.append(self.table(results(self.file)))
        source = f"[`{self.file}.json`](../results/{self.file}.json)"
        return "\n\n".join([*parts, f"{source}: `{self.command}`"])


def mean(values: Any) -> float:
    return statistics.fmean(values)


# What each file says ------------------------------------------------------------------------------


def hmc(d: Any) -> Values:
    last = d["rows"]["rmsprop"]["looks"][-1]
    published = dict(FIDELITY)
    own = published.pop("HMC chains among themselves")
    best = max(published.values(), key=lambda pair: pair[0])
    return {
        "agreement": last["agreement"], "variation": last["total_variation"],
        "seconds": last["seconds"], "epochs": last["epochs"], "best": best[0],
        "best_variation": best[1], "own": own[0], "own_variation": own[1],
    }  # fmt: skip


def nuts(d: Any) -> Values:
    problems = d["nuts"]["problems"]
    rows = [row for found in problems.values() for row in found]
    return {
        "networks": len(problems), "worst": max(abs(r["nll_difference"]) for r in rows),
        "low": min(r["sd_ratio"] for r in rows), "high": max(r["sd_ratio"] for r in rows),
        "seconds": max(r["seconds"] for r in rows),
        "fewest": min(r["nuts_seconds"] for r in rows),
        "most": max(r["nuts_seconds"] for r in rows),
    }  # fmt: skip


def nuts_table(d: Any) -> str:
    def each(rows: list[Any], key: str, digits: int) -> str:
        return ", ".join(f"{row[key]:.{digits}f}" for row in rows)

    columns = ("NLL of NUTS", "ours minus it", "ratio of sds", "seconds", "NUTS")
    return markdown(columns, [
        (name, f"{r[0]['nuts_nll']:.3f}", each(r, "nll_difference", 4), each(r, "sd_ratio", 2),
         each(r, "seconds", 1), f"{r[0]['nuts_seconds']:,.0f}")
        for name, r in d["nuts"]["problems"].items()
    ])  # fmt: skip


def posteriordb(d: Any) -> Values:
    cells = [c for c in d["rows"] if c["metric"] == "default"]
    claimed = [c for c in d["rows"] if c["claimed"]]
    return {
        "models": len({c["model"] for c in cells}), "mean": max(c["mean"] for c in cells),
        "sd": 100 * max(c["sd"] for c in cells), "claimed": len(claimed),
        "passed": sum(c["passed"] for c in claimed),
    }  # fmt: skip


def table1_row(d: Any, method: str, estimate: str) -> Any:
    (row,) = [r for r in d["rows"] if (r["method"], r["estimate"]) == (method, estimate)]
    return row


def paper(d: Any) -> Values:
    found: Values = {"seeds": len(d["config"]["seeds"]), "seconds": d["total_seconds"]}
    for name, key in (("qdop", ("qdop", "ensemble")), ("pooled", ("qdop", "pooled")),
                      ("sgd", ("sgd", "point")), ("deep", ("deep-ensemble", "pooled")),
                      ("dropout", ("mc-dropout", "ensemble"))):  # fmt: skip
        test = table1_row(d, *key)["test"]
        found |= {name: test["nll"]["mean"], f"{name}_acc": test["accuracy"]["mean"]}
    theirs = table1_row(d, "qdop", "ensemble")["paper"]["test"]
    return found | {"theirs": theirs["nll"], "theirs_acc": theirs["accuracy"]}


def paper_table(d: Any) -> str:
    def both(cell: Any, digits: int) -> str:
        return f"{cell['mean']:.{digits}f} ± {cell['std']:.{digits}f}"

    rows = []
    for row in d["rows"]:
        if "bug" in row["label"] or "sampled" in row["label"] or "gamma" in row["label"]:
            continue
        test, theirs = row["test"], row["paper"]["test"] if row["paper"] else None
        said = (f"{theirs['nll']:.4f}", f"{theirs['accuracy']:.2f}") if theirs else ("", "")
        rows.append((row["label"], both(test["nll"], 4), both(test["accuracy"], 2), *said))
    return markdown(("test NLL", "accuracy %", "paper: NLL", "accuracy %"), rows)


def beyond(d: Any) -> Values:
    def row(label: str) -> Any:
        (found,) = [r for r in d["rows"] if r["label"] == label]
        return found

    names = {
        "ours": "12 pooled, deskewed images",
        "dropout": "MC-dropout, 50 masks, length 1.12, deskewed",
        "plain": "12 pooled, places", "plain_dropout": "MC-dropout, 50 masks, length 0.8",
    }  # fmt: skip
    found: Values = {}
    for key, label in names.items():
        found |= {key: row(label)["nll"]["mean"], f"{key}_acc": row(label)["accuracy"]["mean"]}
    return found


def uci_values(d: Any) -> Values:
    ours = {
        name: mean(r["log_likelihood"] for r in d["rows"] if r["table"] == name) for name in TABLES
    }
    best = [max(values) for values in zip(*uci.PUBLISHED.values(), strict=True)]
    return {
        "tables": len(TABLES), "ahead": sum(ours[n] > b for n, b in zip(TABLES, best, strict=True)),
        "fits": len(d["rows"]), "seconds": mean(r["cpu_seconds"] for r in d["rows"]),
    }  # fmt: skip


def uci_table(d: Any) -> str:
    published = [(label, *(f"{v:.2f}" for v in row)) for label, row in uci.PUBLISHED.items()]
    own = uci.cells(d, "log_likelihood", 2)
    return markdown(list(TABLES), [*published, (uci.OURS, *(own[name] for name in TABLES))])


def small_tables(d: Any) -> dict[str, dict[str, list[float]]]:
    """NLL by data set and method, split by split."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in sorted(d["rows"], key=lambda r: r["split"]):
        method = found.setdefault(row["dataset"], {}).setdefault(row["method"], [])
        method.append(row["scores"]["nll"])
    return found


def tabular(d: Any) -> Values:
    found = small_tables(d)
    best = {k: min(mean(v) for m, v in rows.items() if m != "ours") for k, rows in found.items()}
    return {
        "tables": len(found), "ahead": sum(mean(found[k]["ours"]) < best[k] for k in found),
        "gap": max(mean(found[k]["ours"]) - best[k] for k in found),
    }  # fmt: skip


def tabular_table(d: Any) -> str:
    rows = []
    for name, methods in sorted(small_tables(d).items()):
        ours = methods["ours"]
        rival = min((m for m in methods if m != "ours"), key=lambda m: mean(methods[m]))
        apart = [a - b for a, b in zip(ours, methods[rival], strict=True)]
        error = statistics.stdev(apart) / len(apart) ** 0.5
        said = f"{mean(methods[rival]):.3f} ({rival.replace('_', ' ')})"
        rows.append((name, f"{mean(ours):.3f}", said, f"{mean(apart):+.3f} ± {error:.3f}"))
    return markdown(("NLL", "best rival's", "ours minus it"), rows)


def twenty(d: Any) -> Values:
    rows, rivals = d["twenty"]["problems"], d["rivals"]["problems"]
    found = [twenty_table.Summary(n, rows, rivals) for n in rows if " split " not in n]
    pooled = [s.pooled for s in found if s.pooled is not None]
    return {
        "problems": len(found), "ahead": sum(mean(s.differences) <= 0 for s in found),
        "calibrated": sum(p < twenty_table.GOAL for p in pooled),
        "seconds": statistics.median(mean(r["cpu_seconds"] for r in s.rows) for s in found),
    }  # fmt: skip


def home(d: Any) -> Values:
    rows = d["home"]["problems"].values()
    better = [mean(r["nll"] for r in row["defaults"]) < row["five Adam networks"]["nll"]
              for row in rows]  # fmt: skip
    return {"problems": len(rows), "ahead": sum(better)}


def home_table(d: Any) -> str:
    rows = []
    for name, row in d["home"]["problems"].items():
        runs = row["defaults"]
        both = ("nll", "seconds")
        nll, seconds = (", ".join(f"{r[k]:.{3 - 3 * i}f}" for r in runs)
                        for i, k in enumerate(both))  # fmt: skip
        others = (f"{row[k]['nll']:.3f}" for k in ("linear", "five Adam networks"))
        rows.append((name, nll, seconds, *others))
    return markdown(("NLL, two seeds", "seconds", "linear model", "five Adam networks"), rows)


def shift(d: Any) -> Values:
    def error(row: Any) -> float:
        return mean(cell["ece"] for shifted in row["shifts"].values() for cell in shifted)

    found: Values = {k: error(row) for k, row in d["rows"].items()}
    foreign = d["rows"]["posterior"]["foreign"]
    return found | {k: v["epistemic"] for k, v in foreign.items()}


def steps(d: Any) -> Any:
    return d["sections"]["steps"]["networks"][0]["rows"]


def cost(rows: Any, name: str, chains: int) -> Any:
    (found,) = [r for r in rows if (r["name"], r["chains"]) == (name, chains)]
    return found


def cpu_steps(d: Any) -> Values:
    rows = steps(d)
    return {
        "one": cost(rows, "QDOP", 1)["ratio"], "four": cost(rows, "QDOP", 4)["ratio"],
        "sgld": cost(rows, "Euclidean", 1)["ratio"],
        "blackjax": cost(rows, "blackjax SGLD", 1)["ratio"],
        "posteriors": cost(rows, "posteriors SGLD", 1)["ratio"],
    }  # fmt: skip


def gpu_steps(d: Any) -> Values:
    def micro(name: str, chains: int) -> float:
        found: float = cost(steps(d), name, chains)["microseconds_per_chain_step"]["median"]
        return found

    return {
        "one": micro("QDOP", 1), "many": micro("QDOP", 64), "sgd": micro("SGD, eager", 1),
        "jax": micro("jax SGLD", 1), "jax_many": micro("jax SGLD", 64),
    }  # fmt: skip


def effective(d: Any) -> Values:
    rows = [r for r in d["sections"]["samples"]["rows"] if r["chosen"]]
    return {
        "ours": max(r["ess_per_second"] for r in rows if r["ours"]),
        "theirs": max(r["ess_per_second"] for r in rows if not r["ours"]),
    }


def first(d: Any) -> Values:
    return {
        "readme": min(d["README"]["seconds"]),
        "iris": min(d["iris"]["seconds"]),
        "large": d["20000 x 20"]["seconds"][0],
    }


def widths(d: Any) -> Values:
    return {k: d["summary"][k] for k in ("data_sets", "ours", "laplace")}


def coefficients(d: Any) -> Values:
    return {k: d["summary"][k] for k in ("networks", "median", "largest", "covered", "seconds")}


def marginal(d: Any) -> Values:
    rows = d["rows"]
    return {
        "models": len(rows), "within": max(abs(r["value"] - r["exact"]) / r["error"] for r in rows),
        "apart": max(abs(r["value"] - r["exact"]) for r in rows),
    }  # fmt: skip


def order(d: Any) -> Values:
    rows = [r for r in d["rows"] if r["case"] == "rare classes"]
    (fresh,) = [r for r in rows if r["fresh"]]
    (late,) = [r for r in rows if not r["fresh"] and r["adapt"] == "burn-in"]
    return {"fresh": fresh["mean"], "late": late["mean"], "error": late["error"]}


def attacks(d: Any) -> Values:
    families = d["families"].values()
    tried = sum(f["tried"] for f in families)
    return {"tried": tried, "failed": sum(f["failed"] for f in families), "kinds": len(families)}


CLAIMS = (
    Claim(
        "HMC agreement",
        "ResNet-20 on CIFAR-10, for which the predictions of full-batch Hamiltonian Monte Carlo "
        "are [published](https://arxiv.org/abs/2104.14421). Three chains with the RMSProp metric, "
        "{epochs:,.0f} epochs in {seconds:.0f} s on one H200, name HMC's class on {agreement:.1%} "
        "of the test images, at a total variation of {variation:.3f}. The best published SG-MCMC "
        "run: {best:.1%} and {best_variation:.3f}; two chains of HMC among themselves: {own:.0%} "
        "and {own_variation:.3f}.",
        "fidelity-long-h200",
        "python -m lab.fidelity rmsprop --seconds 900 --chains 3 --pilot 0 --looks 150",
        hmc,
    ),
    Claim(
        "NUTS agreement",
        "{networks} small networks, two seeds each, defaults but for the prior, which is that of "
        "NUTS: test NLL within {worst:.3f} nats of NUTS, predictive standard deviations {low:.2f} "
        "to {high:.2f} of its own, in at most {seconds:.0f} s where NUTS took {fewest:,.0f} to "
        "{most:,.0f}.",
        "defaults",
        "python -m lab.defaults.against_nuts",
        nuts,
        nuts_table,
    ),
    Claim(
        "Reference posteriors",
        "{models} models of posteriordb at the defaults with 64 chains, full and quarter batches: "
        "posterior means within {mean:.2f} posterior standard deviations of Stan's, standard "
        "deviations within {sd:.1f} %. Over eight metrics, {passed} of the {claimed} runs that "
        "claim convergence have it, by 0.1 standard deviations and 5 %.",
        "posteriordb",
        "python -m lab.posteriordb",
        posteriordb,
    ),
    Claim(
        "The paper's table",
        "784-400-400-10 on MNIST, {seeds} seeds, in {seconds:.0f} s on one H200. An ensemble of "
        "one QDOP chain has test NLL {qdop:.4f} and {qdop_acc:.2f} % (the paper: {theirs:.4f} and "
        "{theirs_acc:.2f} %), twelve pooled chains {pooled:.4f} and {pooled_acc:.2f} %; one SGD "
        "network {sgd:.4f}, twelve of them {deep:.4f}, MC-dropout {dropout:.4f}. Departures from "
        "the paper's protocol are listed [beside the code](paper_to_code.md#deviations).",
        "table1-h200",
        "natural-langevin reproduce --preset paper --device cuda --jobs 3 --precision high",
        paper,
        paper_table,
    ),
    Claim(
        "Beyond the paper",
        "The same network at temperature 1, settings chosen on held-out training images: twelve "
        "chains reach {ours:.4f} and {ours_acc:.2f} % on deskewed images (MC-dropout tuned on the "
        "same images {dropout:.4f} and {dropout_acc:.2f} %), and {plain:.4f} and {plain_acc:.2f} "
        "% on images as they are ({plain_dropout:.4f} and {plain_dropout_acc:.2f} %).",
        "beyond-h200",
        "python -m lab.beyond --device cuda --out beyond.json",
        beyond,
    ),
    Claim(
        "UCI regression",
        "The {tables} tables and splits of Hernández-Lobato & Adams: test log-likelihood above the "
        "best published row on {ahead} of {tables}, with one set of defaults, {seconds:.1f} "
        "CPU-seconds a fit. The defaults were chosen on parts of the training rows; test scores of "
        "split 0 were seen meanwhile, and many of wine's test rows repeat training rows.",
        "uci",
        "python -m lab.uci --out results/uci.json",
        uci_values,
        uci_table,
    ),
    Claim(
        "Small tables",
        "The scikit-learn estimators against a tuned perceptron, a random forest, two gradient "
        "boosters, a Gaussian process and a deep ensemble of equal cost, 20 splits: lowest NLL on "
        "{ahead} of {tables} tables, and {gap:.3f} behind on the other.",
        "tabular",
        "python -m lab.tables.compare",
        tabular,
        tabular_table,
    ),
    Claim(
        "Twenty problems",
        "`Langevin(model, likelihood).sample(data)` with nothing else given, three splits each, "
        "against early-stopped Adam, five networks and MC-dropout: at least as good as the best "
        "of them on {ahead} of {problems}, calibration error below 0.05 on {calibrated}, "
        "{seconds:.0f} CPU-seconds in the median.",
        "defaults",
        "python -m lab.defaults.twenty",
        twenty,
    ),
    Claim(
        "Larger tables and images",
        "Defaults on two cores: better than five networks trained by Adam on {ahead} of "
        "{problems}.",
        "home-cpu",
        "python -m lab.defaults.home",
        home,
        home_table,
    ),
    Claim(
        "Shifted images",
        "MNIST turned, blurred, noisy and pale: calibration error {posterior:.3f} for four chains, "
        "{ensemble:.3f} for a deep ensemble, {dropout:.3f} for MC-dropout, {single:.3f} for one "
        "network, at equal numbers of gradients. Epistemic uncertainty tells CIFAR-10 from MNIST "
        "with AUROC {cifar10:.3f}. One seed, rivals not tuned.",
        "shift",
        "python -m lab.shift --foreign cifar10 shuffled --steps 6000 --images 2000",
        shift,
    ),
    Claim(
        "Step cost",
        "784-400-400-10, batch 100, two cores, in eager `torch.optim.SGD` steps: QDOP {one:.2f}, "
        "per chain of four {four:.2f}; plain SGLD {sgld:.2f}, in blackjax {blackjax:.2f}, in "
        "posteriors {posteriors:.2f}.",
        "bench-mlp-cpu",
        "python -m lab.speed --sections steps --networks mlp",
        cpu_steps,
    ),
    Claim(
        "Step cost on a GPU",
        "The same on one H200, TF32: {one:.0f} µs for one chain, {many:.1f} per chain of 64; "
        "eager SGD {sgd:,.0f} µs; plain SGLD jitted by JAX {jax:.0f} and {jax_many:.1f}.",
        "bench-mlp-h200",
        "python -m lab.speed --sections steps --networks mlp --device cuda --precision high",
        gpu_steps,
    ),
    Claim(
        "Effective samples",
        "784-50-10 on MNIST, one H200: {ours:.0f} effective samples a second, {theirs:.1f} for the "
        "best of jitted SGLD and SGHMC, whose chains have hardly moved.",
        "bench-samples-h200",
        "python -m lab.speed --sections samples --device cuda",
        effective,
    ),
    Claim(
        "First answer",
        "Two cores: a classifier of 2-32-2 on 500 rows, from the start of Python to its answer, "
        "takes {readme:.1f} s; `NaturalLangevinClassifier().fit` {iris:.1f} s on iris and "
        "{large:.1f} s on 20,000 rows.",
        "first-contact-cpu",
        "python -m lab.first_answer",
        first,
    ),
    Claim(
        "Learning coefficients",
        "{networks} deep linear networks whose finite-sample value is known from full-batch HMC: "
        "relative error {median:.1%} in the median, {largest:.1%} at most, 95 % intervals cover in "
        "{covered:.0%} of them, {seconds:.0f} s each.",
        "slt-deep-linear",
        "python -m lab.slt.deep_linear --out results/slt-deep-linear.json",
        coefficients,
    ),
    Claim(
        "Marginal likelihoods",
        "{models} conjugate linear models: ln Z within {apart:.2f} nats and {within:.1f} of its "
        "own standard errors.",
        "evidence",
        "python -m lab.slt.evidence --out results/evidence.json",
        marginal,
    ),
    Claim(
        "Hidden width",
        "{data_sets} data sets of tanh networks with one to three units: the largest marginal "
        "likelihood is that of the right width in {ours:.0%} of them, by laplace-torch's estimate "
        "(the best of three maxima) in {laplace:.0%}.",
        "slt-width",
        "python -m lab.slt.width --out results/slt-width.json",
        widths,
    ),
    Claim(
        "Order of the metric",
        "One per cent of positive labels, batches of 20: applying a metric to the batch it was "
        "just updated from shifts the posterior mean by {fresh:.2f} standard deviations; the "
        "default order by {late:.2f} ± {error:.2f}.",
        "metric-validity",
        "python -m lab.metric_validity",
        order,
    ),
    Claim(
        "Attacks",
        "Kills, full disks, hostile files, disagreeing ranks, leaks: {tried:,} cases of {kinds} "
        "kinds, {failed} failed.",
        "attack",
        "make attack",
        attacks,
    ),
)  # fmt: skip

BY_TITLE = {claim.title: claim for claim in CLAIMS}

HEAD = """# Evidence

Every figure that these pages quote, with its file and the command that makes it again. Each file
holds configuration, seeds, spread, commit and machine. This page is written from the files by
`python -m lab.claims`, and a test compares. NLL is in nats per test row: lower is better."""


def page() -> str:
    """The evidence page."""
    return "\n\n".join([HEAD, *(claim.section() for claim in CLAIMS)]) + "\n"


# Tables of other pages ----------------------------------------------------------------------------

#: Rows of the README: what is claimed, the sentence, and the claim whose figures fill it.
BELIEVE = (
    ("Close to Hamiltonian Monte Carlo", "HMC agreement",
     "ResNet-20 on CIFAR-10: same class as HMC on {agreement:.1%} of the images after "
     "{minutes:.0f} minutes on one GPU; best published SG-MCMC {best:.1%}"),
    ("Close to NUTS", "NUTS agreement",
     "{networks} networks: NLL within {worst:.3f} nats, in at most {seconds:.0f} s instead of "
     "{fewest:,.0f} to {most:,.0f}"),
    ("Good on tables", "UCI regression",
     "log-likelihood above the best published row on {ahead} of {tables} UCI tables, with one "
     "set of defaults"),
    ("The paper reproduced", "The paper's table",
     "MNIST NLL {qdop:.4f} for one chain (paper {theirs:.4f}), {pooled:.4f} for twelve; twelve SGD "
     "networks {deep:.4f}"),
    ("Fast", "Step cost",
     "{one:.2f} SGD steps on two cores, {four:.2f} per chain of four; plain SGLD elsewhere "
     "{blackjax:.1f} and {posteriors:.1f}"),
)  # fmt: skip


def believe() -> str:
    """Five reasons, each with its anchor."""
    rows = []
    for name, title, text in BELIEVE:
        claim = BY_TITLE[title]
        values = claim.values
        if title == "HMC agreement":
            values["minutes"] = values["seconds"] / 60
        said = text.format(**values)
        rows.append((name, said, f"[evidence](docs/evidence.md#{claim.anchor})"))
    return markdown(("measured", "from"), rows)


def decided() -> str:
    """What the recipe decides, with its constants as the code has them."""
    c = Settings()
    scales = ", ".join(f"{s:g}" for s in c.prior.scales)
    rounds = c.descent.rounds
    rows = (
        ("integrator", f"underdamped, BAOAB, friction {c.step_size.friction:g}; less, down to "
         f"{c.step_size.least_friction:g}, where small steps leave slow directions"),
        ("metric", "quasi-diagonal Fisher, on a CPU of labels drawn from the model where targets "
         f"are real numbers; up to {c.metric.few_weights} weights the full matrix, likewise, or "
         "its blocks by unit if all layers are linear. Averaged over burn-in, then frozen; "
         "damping 1/(N · prior variance)"),
        ("units", "columns and targets of unusual size get mean 0 and deviation 1, no cell beyond "
         f"{standard_units.RARE:g} deviations"),
        ("prior", f"N(0, 2 s / fan-in); s from {scales} by the held-out density of "
         f"{c.prior.folds} folds, or wider by a parabola, below 1 only where the others are "
         f"clearly behind; 1 below {c.prior.fewest_rows} rows; a "
         f"`DataLoader` lends {LOADER_ROWS:,} rows for it"),
        ("start", "the model if it is trained, else N(0, 1/fan-in) per chain; then a "
         f"descent of {rounds[0]} to {rounds[-1]:,} steps by minibatches of {c.descent.batch} rows "
         "or more"),
        ("minibatch", f"1/{c.batch.part} of the data, {c.batch.fewest} to {c.batch.most} rows; "
                      f"all of fewer than {2 * c.batch.fewest}"),
        ("step size", f"{c.step_size.steepness:g} / λ, {c.cheap.steepness:g} / λ where "
         f"steps are cheap ({c.cheap.steps:,} affordable), or less: minibatches may add "
         f"{c.step_size.heat:g} to the temperature"),
        ("steps", f"until the chains agree, at {c.end.rows} rows and around them, by the R-hat of "
         f"`diagnose`, with {c.end.ess:g} effective draws of the worst ({c.cheap.ess:g} "
         f"where steps are cheap and targets real, {c.step_size.ess:g} of few weights): "
         f"{c.end.first_steps:,} steps at least, otherwise parts {c.end.growth} times as long, up "
         f"to {c.cheap.unmixed * c.length.most:,} (tables {c.length.most:,}) or a budget of "
         "operations (tens of seconds on a CPU)"),
        ("burn-in", "a third; a fifth of later parts"),
        ("draws", f"about {c.cost.most_draws} per chain, {c.cost.fewest_draws} at least if "
         "predicting with more would be slow"),
    )  # fmt: skip
    return markdown(("decided",), rows)


def moons(rows: list[tuple[str, str, str]]) -> str:
    """Cost, speed and width on the two moons, of (title, dynamics, metric)."""
    cells = {(c["kind"], c["dynamics"], c["metric"]): c for c in results("samplers")["rows"]}
    found = []
    for title, dynamics, metric in rows:
        cost_of, c = (cells[kind, dynamics, metric] for kind in ("cost", "moons"))
        way = f"{cost_of['ratio']:.2g} SGD steps, {cost_of['way']}"
        found.append((title, way, f"{c['ess_per_second']:,.0f}", f"{100 * c['spread']:+.0f} %"))
    return markdown(("cost of a step", "ESS per CPU-second", "spread"), found)


def by_dynamics() -> str:
    names = ("Overdamped", "Underdamped, Euler", "BAOAB", "UBU", "NoseHoover", "Adjusted, 10 steps")
    return moons([(name, name, "QuasiDiagonalFisher") for name in names])


def by_metric() -> str:
    names = ("Euclidean", "RMSProp", "DiagonalFisher", "QuasiDiagonalFisher", "UnitFisher",
             "KroneckerFisher", "EigenKroneckerFisher", "FullFisher")  # fmt: skip
    return moons([(f"`{name}`", "BAOAB", name) for name in names])


def buys() -> str:
    """Price and quality of the ways to predict on MNIST."""
    table, speed = results("table1-h200"), BY_TITLE["Step cost"].values
    rows = []
    for label, price, method, estimate in (
        ("SGD, one network", "1", "sgd", "point"),
        ("deep ensemble, 12 SGD networks", "12", "deep-ensemble", "pooled"),
        ("MC-dropout, 50 masks", "", "mc-dropout", "ensemble"),
        ("Natural Langevin, one chain", f"{speed['one']:.2f}", "qdop", "ensemble"),
        ("Natural Langevin, 12 chains", f"12 × about {speed['four']:.2f}", "qdop", "pooled"),
    ):
        test = table1_row(table, method, estimate)["test"]
        scores = f"{test['nll']['mean']:.4f}", f"{test['accuracy']['mean']:.2f} %"
        rows.append((label, price, *scores))
    return markdown(("cost in SGD runs", "test NLL", "test accuracy"), rows)


def how_long() -> str:
    """Steps of a dozen networks on two cores and on one GPU; what is not measured is a dash."""
    files = {name: {} for name in ("how-long-cpu", "how-long-h200")}
    room = {}
    for name, found in files.items():
        if (ROOT / "results" / f"{name}.json").exists():
            record = results(name)
            found.update({(r["network"], r["chains"]): r for r in record["rows"]})
            room[name] = record["machine"]["memory_bytes"]
    rows = []
    for key, (title, problem) in NETWORKS.items():
        cells = []
        for name, found in files.items():
            one, four = found.get((key, 1)), found.get((key, 4))
            if one is None:
                cells += ["–"] * (3 if name.endswith("h200") else 2)
                continue
            seconds = statistics.median(one["seconds_per_1000_steps"])
            cells += [_seconds(seconds), _bytes(one["memory_bytes"])]
            if name.endswith("h200"):
                cells.append(_fit(one, four, room[name]))
        weights = sum(p.numel() for p in problem.network().parameters())
        rows.append((title, f"{weights:,}", str(problem.batch), *cells))
    columns = ("weights", "batch", "CPU: seconds", "memory", "H200: seconds", "memory",
               "chains that fit")  # fmt: skip
    return markdown(columns, rows)


def _seconds(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def _fit(one: Any, four: Any, room: float) -> str:
    """Chains that fit, by what three more took, and by 16 bytes of state a weight at least."""
    if four is None:
        return "–"
    more = max((four["memory_bytes"] - one["memory_bytes"]) / 3, 16 * one["weights"])
    chains = int(room / more)
    return f"{chains:,}" if chains < 10_000 else "more than 10,000"


def _bytes(value: float) -> str:
    megabytes = value / 2**20
    return f"{megabytes:,.0f} MB" if megabytes < 1024 else f"{megabytes / 1024:.1f} GB"


#: Tables between markers: (page, name, content).
PARTS: tuple[tuple[str, str, Callable[[], str]], ...] = (
    ("README.md", "believe", believe),
    ("docs/defaults.md", "decided", decided),
    ("docs/samplers.md", "dynamics", by_dynamics),
    ("docs/samplers.md", "metrics", by_metric),
    ("docs/why.md", "buys", buys),
    ("docs/how_long.md", "how-long", how_long),
)


def written() -> Iterator[tuple[Path, str]]:
    """Every page that this file writes, and what it should hold."""
    yield PAGE, page()
    texts: dict[Path, str] = {}
    for name, part, content in PARTS:
        path = ROOT / name
        texts[path] = with_part(texts.get(path) or path.read_text(), part, content())
    yield from texts.items()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = [(p, text) for p, text in written() if not p.exists() or p.read_text() != text]
    for path, text in stale:
        print(path.relative_to(ROOT))
        if not check:
            path.write_text(text)
    sys.exit(int(check and bool(stale)))


if __name__ == "__main__":
    main()
