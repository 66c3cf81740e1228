"""What a stranger's files hold beyond numbers and words, each kind as it was met."""

import io
import re

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from natural_langevin import likelihoods
from natural_langevin.data import DataError
from natural_langevin.data.csv_file import CsvFile
from natural_langevin.data.table import Table, from_frame
from natural_langevin.data.tables import TrainingData, open_source, read_training
from natural_langevin.sklearn import NaturalLangevinRegressor
from natural_langevin.tabular import columns, crossvalidation
from natural_langevin.tabular.columns import Date, Number
from natural_langevin.tabular.features import FARTHEST, Features
from natural_langevin.tabular.fit import prepare
from natural_langevin.tabular.outcome import FEWEST_BOUNDED, Outcome, outcomes
from natural_langevin.tabular.predictive import Predictive, _limited
from natural_langevin.tabular.quality import _for_the_command
from natural_langevin.tabular.scoring import NumberScores, _auc
from natural_langevin.tabular.settings import Settings
from natural_langevin.tabular.sureness import sentences
from natural_langevin.tabular.survey import fit_features
from natural_langevin.tabular.target import Target, find_target, in_order


def table(text: str) -> Table:
    return CsvFile(io.BytesIO(text.encode()), label="a.csv").table()


def surveyed(cells: list[str]) -> tuple[Features, str]:
    rows = "\n".join(f"{cell};{k}" for k, cell in enumerate(cells))
    features = fit_features(table(f"x;y\n{rows}\n"), targets=("y",))
    return features, " | ".join(features.notices)


def test_the_index_that_pandas_writes_is_named_told_and_left_out():
    frame = pd.DataFrame({"a": np.arange(50.0) ** 2, "y": range(50)})
    file = CsvFile(io.BytesIO(frame.to_csv().encode()), label="a.csv")
    features = fit_features(file.table(), targets=("y",))
    assert file.names == ("unnamed 1", "a", "y")
    assert file.notices == ("a.csv, line 1: column 1 has no name: called unnamed 1",)
    assert features.names == ("a",)
    assert (
        "unnamed 1: a different whole number in every row, so an identifier" in features.notices[0]
    )


def test_a_unit_behind_numbers_is_left_out_and_another_one_is_not_read():
    features, said = surveyed(["8,3 km", "11,5 km", "2,1 km", "7,0 km"] * 5)
    (part,) = features.parts
    assert isinstance(part, Number)
    assert (part.unit, part.decimal) == ("km", ",")
    assert part.mean == pytest.approx((8.3 + 11.5 + 2.1 + 7) / 4)
    assert "km left out (8,3 km is 8.3)" in said
    new = table("x;y\n300 m;1\n4,5 km;2\n4,5;3\n")
    encoded = Features.from_json(features.to_json()).encode(new)
    assert "'300 m' is no number, taken as missing" in encoded.notes[0]
    assert encoded.x[1] == encoded.x[2]


def test_several_units_are_no_numbers():
    features, _ = surveyed(["5 km", "300 m"] * 10)
    assert not isinstance(features.parts[0], Number)


def test_a_target_with_a_unit_is_a_number():
    target, _ = find_target(table("y\n" + "\n".join(f"{k}.5 kg" for k in range(30))), "y")
    assert (target.task, target.unit) == ("regression", "kg")
    assert target.encode(table("y\n3.5 kg\n4\n")).flatten().tolist() == [3.5, 4.0]
    assert Target.from_json(target.to_json()) == target


def test_a_code_for_missing_is_told_and_taken_as_missing():
    features, said = surveyed([*map(str, range(40)), "-999", "-999"])
    (part,) = features.parts
    assert (part.mean, part.code, part.missing) == (19.5, -999.0, True)
    assert "-999 in 2 of 42 cells, far below all: taken as missing" in said
    assert Features.from_json(features.to_json()) == features
    x = features.encode(table("x;y\n-999;0\n;0\n19.5;0\n")).x
    assert torch.equal(x[0], x[1])
    assert x[2].tolist() == [0.0, 0.0]
    # A temperature of -9, or one cell that may be a slip, is a number like any other.
    assert surveyed(["-9", "-9", "-8", "4", "7"])[0].parts[0].code is None
    assert surveyed([*map(str, range(40)), "-999"])[0].parts[0].code is None


def test_numbers_with_remarks_among_them_are_numbers_with_gaps():
    cells = [f"{k / 7:.3f}" if k % 3 else f"about {k}" for k in range(120)]
    features, said = surveyed(cells)
    assert isinstance(features.parts[0], Number)
    assert "40 of 120 cells are no number (first: 'about 0', a.csv, line 2)" in said


def test_dates_written_in_two_ways_are_both_read():
    days = pd.date_range("2021-01-01", periods=60)
    cells = [day.strftime("%Y-%m-%d" if k % 2 else "%d.%m.%Y") for k, day in enumerate(days)]
    features, said = surveyed(cells)
    (part,) = features.parts
    assert isinstance(part, Date)
    assert sorted(part.format.split("|")) == ["%Y-%m-%d", "%d.%m.%Y"]
    assert "read as" in said
    assert " or " in said
    read = columns.dates(
        table("x;y\n" + "\n".join(f"{c};0" for c in cells)).frame["x"], part.format
    )
    assert (read.dt.tz_localize(None).to_numpy() == days.to_numpy()).all()


def test_the_time_of_day_is_a_phase():
    features, said = surveyed([f"{hour}:{hour % 60:02d}" for hour in range(24)] * 3)
    (part,) = features.parts
    assert isinstance(part, Date)
    assert list(part.parts) == ["days", "cos of day", "sin of day"]
    assert "times (read as %H:%M): they, and their place in the day, are inputs" in said


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["high", "low", "medium"], ("low", "medium", "high")),
        (["Very_Good", "poor", "Good"], ("poor", "Good", "Very_Good")),
        (["18-25", "66+", "<18", "26-65"], None),  # <18 and 18-25 begin alike
        (["10-19", "5-9", "20+"], ("5-9", "10-19", "20+")),
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["ash", "elm"], None),
    ],
)
def test_classes_have_the_order_of_their_scale(words, order):
    assert in_order(words) == order


def test_an_order_that_nobody_knows_is_not_made_up():
    text = "y\n" + "ash\nelm\noak\n" * 4
    assert find_target(table(text), "y", "classification")[0].classes == ("ash", "elm", "oak")
    with pytest.raises(DataError, match=r"'ash', 'elm', 'oak', whose order is not known: write"):
        find_target(table(text), "y", "ordinal")
    text = "y\n" + "low\nhigh\nmedium\n" * 4
    assert find_target(table(text), "y", "ordinal")[0].classes == ("low", "medium", "high")


def test_a_class_in_the_middle_may_be_all_but_certain():
    """With cutpoints a unit apart it could have no more than tanh(1/4), a quarter."""
    outcome = Outcome("ordinal", "ordinal", classes=4)
    assert outcome.outputs == 3  # the latent value, and two gaps
    outputs = torch.tensor([[-0.5, 0.0, 0.0], [4.5, 2.5, 2.5]])
    law = outcome.likelihood.distribution(outputs, {})
    assert float(law.probs[0, 1]) == pytest.approx(np.tanh(0.25))
    assert float(law.probs[1, 1]) > 0.99


def test_counts_are_recognised_and_few_values_are_classes():
    rng = np.random.default_rng(0)
    claims = rng.negative_binomial(1, 0.1, size=400)
    target, reason = find_target(table("y\n" + "\n".join(map(str, claims))), "y")
    assert target.task == "count"
    assert "as counts do (if they are not counts: --task regression)" in reason
    shifted = "y\n" + "\n".join(map(str, claims + 1))
    assert find_target(table(shifted), "y")[0].task == "regression"
    few = "y\n" + "\n".join(map(str, rng.poisson(1.0, size=400)))
    target, reason = find_target(table(few), "y")
    assert target.task == "classification"
    assert "count something: --task count; have an order: --task ordinal" in reason


def test_rows_of_a_class_that_was_not_learned_are_not_scored_and_the_rest_is():
    target = Target("y", ("a", "b"), (0.5, 0.5))
    new = table("y;x\na;1\nc;2\n;3\nb;4\n")
    assert target.known(new).tolist() == [True, True, False, True]
    assert target.learned(new).tolist() == [True, False, False, True]


def test_a_class_of_one_row_is_mentioned():
    rows = "\n".join(f"{k};{'yew' if k == 7 else 'oak' if k % 2 else 'ash'}" for k in range(20))
    data = TrainingData(table(f"x;y\n{rows}\n"), None, "y")
    notices = prepare(data, source="a.csv").run.notices
    assert notices == (
        "y: classes with fewer than 3 rows are hardly learned, and one with a single row is not "
        "tested: yew (1)",
    )


def test_the_area_under_the_curve_leaves_out_classes_without_rows():
    p = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.6, 0.3, 0.1], [0.5, 0.4, 0.1]])
    assert _auc(p, torch.tensor([0, 1, 0, 1]))["auc"] == pytest.approx(1.0)
    assert _auc(p, torch.tensor([0, 0, 0, 0])) == {}


def test_amounts_are_never_negative():
    """Against max(0, z) of a normal mixture, by its density and by draws."""
    y = torch.tensor([0.0, 1.0, 4.0] * FEWEST_BOUNDED).double()[:, None]
    # Logarithms and amounts in two parts have no negative values to begin with.
    plain = [one for one in outcomes("regression", y, Settings()) if not one.log]
    assert all(one.bounded for one in plain if one.noise != "hurdle")
    assert not any(one.bounded for one in outcomes("regression", y - 1, Settings()))
    assert not any(one.bounded for one in outcomes("regression", y[:9], Settings()))
    means, weights = torch.tensor([-1.0, 0.5]), torch.tensor([0.25, 0.75])
    law = torch.distributions.Normal(means[:, None, None].double(), torch.ones(2, 1, 1).double())
    outcome = Outcome("regression", "constant", mean=(0.2,), scale=(2.0,), bounded=True)
    found = Predictive(outcome, law, weights, flat=True)
    z = [stats.norm(0.2 + 2 * mean, 2.0) for mean in means.tolist()]
    positive = [[one.expect(lambda v, k=k: v**k, lb=0) for one in z] for k in (1, 2)]
    shares = weights.tolist()
    first, second = (float(np.dot(shares, part)) for part in positive)
    assert found.mean[0] == pytest.approx(first, rel=1e-6)
    assert found.variance[0] == pytest.approx(second - first**2, rel=1e-6)
    assert found.quantile(0.05)[0] == 0.0
    below = float(np.dot(shares, [one.cdf(0.0) for one in z]))
    assert found.cdf([0.0])[0] == pytest.approx(below)
    assert found.cdf([-1e-9])[0] == 0.0
    assert found.quantile(below + 0.1)[0] > 0
    draws = found.sample(4000)
    assert draws.min() == 0.0
    assert draws.mean() == pytest.approx(first, abs=4 * np.sqrt((second - first**2) / 4000))
    plain = Predictive(Outcome("regression", "constant", mean=(0.2,), scale=(2.0,)), law, weights,
                       flat=True)  # fmt: skip
    assert found.log_prob([1.3]) == plain.log_prob([1.3])
    assert plain.quantile(0.05)[0] < 0


def test_intervals_of_counts_are_judged_by_what_they_say():
    """Right Poisson laws: 90 % intervals of whole numbers hold more, and are not too wide."""
    rates = torch.full((1, 400, 1), 1.3).double().log()
    law = likelihoods.Poisson().distribution(rates, {})

    class Exact:
        def predictive(self, x):
            return Predictive(Outcome("count", "poisson"), law, torch.ones(1), flat=True)

    y = torch.as_tensor(np.random.default_rng(0).poisson(1.3, size=(400, 1)).astype(float))
    scores = NumberScores(Exact(), Target("y", task="count"))
    hit, said = scores.add(torch.zeros(400, 1), y)
    exact = stats.poisson(1.3).cdf(3)  # from 0 to 3
    assert said.tolist() == pytest.approx([exact] * 400)
    found = scores.result()
    assert found["intervals"]["said"] == pytest.approx(exact)
    words = sentences(found | {"rows": 400})
    assert "the nominal share is 96 %): as sure as it should be" in words[0]
    assert float(hit.double().mean()) > 0.93


def test_advice_names_options_of_the_command():
    said = _for_the_command(
        'The chains disagree: run longer, steps=6000 or until="ess:400", or pool more chains.'
    )
    assert said == "The chains disagree: run longer, --steps 6000, or pool more chains."
    said = _for_the_command("Chain 1 diverged at step 1521: use a smaller step size.")
    assert said == "Chain 1 diverged at step 1521, and is left out."


def test_a_column_of_times_where_numbers_were_is_missing():
    features = fit_features(table("x,y\n1,0\n2,1\n4,0\n"), targets=("y",))
    new = from_frame(pd.DataFrame({"x": pd.to_datetime(["2021-01-01"]), "y": [0]}))
    assert re.search("no number", features.encode(new).notes[0])


def test_lines_above_the_header_are_told_and_titles_are_named(tmp_path):
    file = CsvFile(io.BytesIO(b"sep=;\n# made by a tool\nx;y\n1;2\n"), label="a.csv")
    assert file.names == ("x", "y")
    assert file.notices == (
        "a.csv, line 1: 'sep=;' skipped", "a.csv, line 2: '# made by a tool' skipped"
    )  # fmt: skip
    assert file.table().where(0) == "a.csv, line 4"
    path = tmp_path / "t.csv"
    path.write_text("Sales report\nx,y\n1,2\n")
    with pytest.raises(DataError, match=r"it has Sales report alone: is line 1 a title\?"):
        read_training(str(path), target="y")
    path.write_text('[{"x": 1, "y": 2}]')
    with pytest.raises(DataError, match="line 1: this looks like JSON"):
        read_training(str(path), target="y")


def test_spreadsheet_errors_are_missing_and_parentheses_a_minus():
    features, said = surveyed(["1", "2", "#DIV/0!", "n.a.", "(blank)", "(3)", "4"])
    (part,) = features.parts
    assert part.mean == pytest.approx((1 + 2 - 3 + 4) / 4)
    assert "3 of 7 cells are missing" in said
    assert "parentheses are read as a minus ((3) is -3)" in said


def test_words_that_differ_in_capitals_are_mentioned():
    _, said = surveyed(["Rome", "rome", "Oslo"] * 4)
    assert "'Rome' and 'rome' differ only in capitals and are kept apart" in said


@pytest.mark.parametrize("form", ["%Y-%m", "%m/%Y", "%b %Y"])
def test_months_are_dates(form):
    months = pd.date_range("2020-01-01", periods=30, freq="MS")
    features, _ = surveyed([month.strftime(form) for month in months])
    assert isinstance(features.parts[0], Date)
    assert features.parts[0].format == form


def test_one_network_unsure_of_its_noise_does_not_make_the_mean_infinite() -> None:
    """Of the logarithm of a target: E[y] = exp(m + s^2 / 2) overflowed for one network of eight
    hundred, and a whole table's RMSE was infinite. Against quadrature, and against the plain
    formula where the limit is far."""
    mean = torch.tensor([0.3, 0.3, 1.0, 5.0], dtype=torch.float64)
    variance = torch.tensor([0.04, 1.0, 1600.0, 4.0], dtype=torch.float64)
    cap = torch.tensor(6.0, dtype=torch.float64)
    found = torch.stack(_limited(mean, variance, cap))
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    weight = torch.exp(-z.square() / 2)
    y = torch.exp(torch.minimum(mean[:, None] + variance.sqrt()[:, None] * z, cap))
    first, second = ((y**k * weight).sum(1) / weight.sum() for k in (1, 2))
    torch.testing.assert_close(found, torch.stack([first, second - first**2]), rtol=1e-6, atol=0)
    plain = torch.exp(mean[0] + variance[0] / 2)
    assert float(found[0, 0]) == float(plain)


def test_months_are_dates_with_a_season() -> None:
    features, said = surveyed([f"{2020 + k // 12}-{k % 12 + 1:02d}" for k in range(36)])
    (part,) = features.parts
    assert isinstance(part, Date)
    assert len(part.parts) > 1, "days alone have no season"
    assert "dates (read as %Y-%m)" in said


def test_a_cold_night_is_no_code_for_missing() -> None:
    assert columns.missing_code(np.array([-9.0, -9.0, *np.arange(9.0)])) is None
    assert columns.missing_code(np.array([-9.0, -9.0, 1.0, 2.0, 1.5])) == -9.0


def test_a_noise_that_was_asked_for_is_no_counts_noise() -> None:
    """Whole numbers from 0 on are taken for counts where nothing else is said."""
    from natural_langevin.sklearn import NaturalLangevinRegressor

    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 2))
    y = np.concatenate([np.zeros(30), np.arange(30), np.arange(30)])
    fitted = NaturalLangevinRegressor(noise="constant", steps=20, chains=2).fit(x, y)
    assert np.isfinite(fitted.predict(x)).all()


def of_file(tmp_path, text: str, target: str) -> TrainingData:
    path = tmp_path / "a.csv"
    path.write_text(text)
    return read_training(str(path), target=target)


@pytest.mark.parametrize("word", ["none", "None", "NA"])
def test_a_class_may_be_called_none(tmp_path, word):
    rows = [(word, "a"), ("mild", "b"), ("severe", ""), ("", "c")] * 5
    data = of_file(tmp_path, "y,x\n" + "".join(f"{y},{x}\n" for y, x in rows), "y")
    assert find_target(data.table, "y")[0].classes == (word, "mild", "severe")
    assert data.notices[0].startswith(f"y: {word!r} in 5 of 20 rows is taken as a class")
    with open_source(str(tmp_path / "a.csv"), target="y") as source:
        (chunk,) = source.chunks(100)
    assert (chunk.frame["y"] == word).sum() == 5


def test_none_among_numbers_is_missing_in_the_target_as_well(tmp_path):
    data = of_file(tmp_path, "y,x\n" + "NA,1\nmild,NA\nsevere,2\n" * 5, "y")
    assert find_target(data.table, "y")[0].classes == ("mild", "severe")
    assert "'NA' in 5 of 15 rows is taken as missing, as it is among the" in data.notices[0]
    numbers = of_file(tmp_path, "y,x\n" + "none,1\n1 km,3\n2 km,2\n" * 5, "y")
    assert find_target(numbers.table, "y", "regression")[0].unit == "km"
    assert numbers.table.frame["y"].isna().sum() == 5
    assert numbers.notices == ()


def test_a_row_that_sums_up_others_is_told_and_left_out(tmp_path):
    body = "".join(f"{town},{k},{2 * k + 0.5}\n" for k, town in enumerate(["Rome", "Oslo"] * 15))
    found = prepare(of_file(tmp_path, f"town,n,y\n{body}Grand total,435,885\n", "y"), source="a")
    assert sum(found.run.rows) == 30
    assert "town: 'Grand total' (a.csv, line 32) is a total of other rows: left out" in " ".join(
        found.run.notices
    )
    many = body.replace("Oslo", "total")  # a category like the others
    assert sum(prepare(of_file(tmp_path, f"town,n,y\n{many}", "y"), source="a").run.rows) == 30


def test_beyond_a_limit_is_the_limit():
    features, said = surveyed(["<0.05", "0.3", "1.2", "> 9"] * 5)
    (part,) = features.parts
    assert part.mean == pytest.approx((0.05 + 0.3 + 1.2 + 9) / 4)
    assert "beyond a limit is read as the limit (<0.05 is 0.05)" in said
    assert isinstance(surveyed(["<18", "18-30", "31-50", ">50"] * 5)[0].parts[0], columns.Category)


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (90 + np.arange(60) % 9, "regression"),  # such as an oxygen saturation
        (np.repeat([0, 1, 2, 3, 4, 9, 17, 30], [20, 12, 9, 6, 4, 1, 1, 1]), "count"),
        (np.arange(60) % 10, "classification"),
        (1 + np.arange(60) % 5, "classification"),
    ],
)
def test_whole_numbers_are_names_quantities_or_counts(values, task):
    text = "y,x\n" + "".join(f"{y},{k}\n" for k, y in enumerate(values))
    found, reason = find_target(table(text), "y")
    assert found.task == task
    assert "--task" in reason


def test_shares_end_at_one_and_percentages_at_100():
    share = torch.linspace(0.02, 0.97, 40).double()[:, None]

    def upper(y: torch.Tensor) -> float | None:
        return outcomes("regression", y, Settings())[0].upper

    assert (upper(share), upper(100 * share)) == (1, 100)
    assert upper((85 + 15 * share).round().clamp_max(99)) is None  # none of them is 100
    assert upper(torch.cat([85 + 14 * share, 0 * share[:2] + 100])) == 100
    assert upper(50 * share) is None
    assert upper(0.95 + 0.05 * share.round()) is None
    assert upper(share[:9]) is None
    prices = torch.cat([0.6 * share.repeat(3, 1) ** 3, 0 * share[:1] + 0.97])  # one house of .97
    assert upper(prices) is None


def test_folds_that_were_asked_for_are_all_run() -> None:
    assert [len(crossvalidation.split(6000, folds, 0, None)) for folds in (4, 10)] == [2, 10]
    rows = [250, 1000, 1500, 2000]  # until a thousand are held out, two at least
    assert [len(crossvalidation.split(n, 4, 0, None, 1000)) for n in rows] == [4, 4, 3, 2]


def test_percentages_are_never_above_100():
    """Against min(max(0, z), 100) of a normal mixture, by draws; the ends have probabilities."""
    law = torch.distributions.Normal(
        torch.tensor([80.0, 97.0]).double()[:, None, None],
        torch.tensor([15.0, 6.0]).double()[:, None, None],
    )
    weights = torch.tensor([0.3, 0.7])
    found = Predictive(
        Outcome("regression", "constant", bounded=True, upper=100.0), law, weights, flat=True
    )
    rng = np.random.default_rng(0)
    first = rng.random(200_000) < 0.3
    z = np.where(first, rng.normal(80, 15, first.shape), rng.normal(97, 6, first.shape))
    y = np.clip(z, 0, 100)
    error = y.std() / len(y) ** 0.5
    assert found.mean[0] == pytest.approx(y.mean(), abs=4 * error)
    assert found.std[0] == pytest.approx(y.std(), rel=0.01)
    assert found.quantile(0.95)[0] == 100.0
    assert found.cdf([100.0])[0] == 1.0
    assert found.sample(500).max() == 100.0
    at_end = np.exp(found.log_prob([100.0])[0])
    assert at_end == pytest.approx((z >= 100).mean(), abs=4 * (at_end / len(y)) ** 0.5)
    grid = np.linspace(1e-6, 100 - 1e-6, 4001)
    inside = sum(np.exp(found.log_prob([v])[0]) for v in grid) * (grid[1] - grid[0])
    at_zero = np.exp(found.log_prob([0.0])[0])
    assert inside + at_end + at_zero == pytest.approx(1, abs=1e-3)


def test_logarithms_of_percentages_end_at_100_too():
    law = torch.distributions.Normal(
        torch.zeros(1, 1, 1).double(), torch.full((1, 1, 1), 2.0).double()
    )
    found = Predictive(
        Outcome("regression", "constant", mean=(3.0,), log=True, upper=100.0), law,
        torch.ones(1), flat=True,
    )  # fmt: skip
    draws = np.minimum(np.exp(3 + 2 * np.random.default_rng(0).normal(size=200_000)), 100)
    assert found.mean[0] == pytest.approx(draws.mean(), abs=4 * draws.std() / len(draws) ** 0.5)
    assert found.quantile(0.99)[0] == 100.0


def test_a_cell_far_beyond_all_others_is_bounded_and_its_row_predicted():
    """A total among new rows, or a pixel that is nearly always empty: the other cells count."""
    features = fit_features(table("x,y\n" + "".join(f"{k % 9},{k}\n" for k in range(50))),
                            targets=("y",))  # fmt: skip
    encoded = features.encode(table("x,y\n5,1\n60481,2\n"))
    assert encoded.usable.all()
    assert float(encoded.x[1]) == FARTHEST
    assert "standard deviations from the training rows' mean, taken as 1,000" in encoded.notes[1]


def test_one_number_beside_which_the_others_hardly_differ_is_told():
    values = np.append(np.linspace(1.0, 3.0, 59), 1e300)
    rare = np.repeat([0.0, 5.0], [57, 3])  # mostly nothing is no mistake
    found = fit_features(from_frame(pd.DataFrame({"size": values, "rare": rare})))
    (said,) = found.notices
    assert re.match(r"size: most are between 1\.\d+ and \d.*one is 1e\+300.*a mistake", said)


def test_digits_with_leading_zeros_are_codes():
    few, said = surveyed(["007", "012", "130", ""] * 10)
    (part,) = few.parts
    assert isinstance(part, columns.Category)
    assert "leading zeros, such as '007', are codes: taken as categories" in said
    stripped = few.encode(table("x;y\n7;1\n007;2\n"))  # as a spreadsheet would write them
    assert stripped.x[0].equal(stripped.x[1])
    many, said = surveyed([f"{k % 140:05d}" for k in range(300)])
    assert isinstance(many.parts[0], Number)
    assert "140 of them, too many for categories: read as numbers" in said
    months, said = surveyed([f"{k % 12:02d}" for k in range(99)])
    assert isinstance(months.parts[0], Number)
    assert not said
    rows = "".join(f"{k:05d};{k % 7};{k}\n" for k in range(99))
    features = fit_features(table(f"x;z;y\n{rows}"), targets=("y",))
    assert features.names == ("z",)
    assert "different in every row, so an identifier: left out" in features.notices[0]


def test_classes_keep_their_leading_zeros():
    target, reason = find_target(table("a,code\n" + "1,007\n2,012\n3,130\n" * 9), "code")
    assert target.classes == ("007", "012", "130")
    assert reason == "code holds codes with leading zeros"
    assert target.encode(table("a,code\n1,12\n2,007\n3,130\n")).tolist() == [1, 0, 2]
    assert target.learned(table("a,code\n1,12\n2,0007\n3,9\n")).tolist() == [True, True, False]


def test_counts_of_few_values_are_counts_to_a_regressor(monkeypatch):
    """0 to 8, most of them 0: too few values for ``train``, which may be asked for classes."""
    seen = []
    monkeypatch.setattr(
        NaturalLangevinRegressor, "_learn", lambda *_, task="", **options: seen.append(task)
    )
    y = np.array([0.0] * 30 + list(range(9)))
    x = np.arange(len(y))[:, None].astype(float)
    NaturalLangevinRegressor().fit(x, y)
    NaturalLangevinRegressor().fit(x, y + 0.5)
    assert seen == ["count", ""]


def test_copies_of_rows_are_told_where_they_are_no_chance():
    """Of pure noise, every row four times: an RMSE of .07 was reported, without a word."""
    rows = [f"{k / 7};{k % 3};{k * k % 17}" for k in range(50)]
    once = TrainingData(table("x;z;y\n" + "\n".join(rows)), None, "y")
    twice = TrainingData(table("x;z;y\n" + "\n".join(rows + rows[:20])), None, "y")
    chance = TrainingData(
        table("x;y\n" + "\n".join(f"{k % 3};{k % 7}" for k in range(50))), None, "y"
    )
    assert prepare(once, source="a").run.notices == ()
    assert prepare(chance, source="a").run.notices == ()
    (said,) = prepare(twice, source="a").run.notices
    assert said.startswith("20 of 70 rows are copies of rows above them (first: a.csv, line 52)")


@pytest.mark.parametrize("cells", [["1,5", "2,25", "-3"], ["yes", "no", "no"], ["0", "1", "1"]])
def test_a_copy_of_the_target_is_told(cells):
    rows = "".join(f"{cell};{k};{cell}\n" for k, cell in enumerate(cells * 9))
    features = fit_features(table(f"copy;n;y\n{rows}"), targets=("y",))
    assert features.names == ("copy", "n")
    (said,) = (notice for notice in features.notices if "target" in notice)
    assert said.startswith("copy: the same as the target in every row")
    assert said.endswith("(--drop copy)")
