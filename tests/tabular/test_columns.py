"""Tables as people have them: every column becomes inputs or is left out, and all of it is said."""

import io
import json

import numpy as np
import pandas as pd
import pytest
import torch

from natural_langevin.data import DataError
from natural_langevin.data.csv_file import CsvFile
from natural_langevin.data.table import Table, from_frame
from natural_langevin.tabular.columns import MOST_LEVELS, OTHER, Category, Date, Number, canonical
from natural_langevin.tabular.features import Features
from natural_langevin.tabular.fit import split
from natural_langevin.tabular.outcome import outcomes
from natural_langevin.tabular.settings import Settings
from natural_langevin.tabular.survey import fit_features
from natural_langevin.tabular.target import Target, find_target, fit_target


def table(text: str) -> Table:
    return CsvFile(io.BytesIO(text.encode()), label="a.csv").table()


def fitted(text: str, **options) -> Features:
    return fit_features(table(text), targets=("y",), **options)


def said(features: Features, name: str) -> str:
    return " | ".join(n for n in features.notices if n.startswith(f"{name}: "))


PEOPLE = "age,town,flag,y\n30,Rome,1,a\n40,Oslo,1,b\n50,Rome,1,a\n"


def test_inputs_of_a_column_are_those_that_change_with_it():
    """Shuffling them among the rows is encoding a table whose column was shuffled."""
    text = (
        "age,town,day,y\n30,Rome,2020-01-02,1\n,Oslo,2021-03-05,2\n50,,2019-12-30,3\n41,Rome,,4\n"
    )
    features, whole = fitted(text), table(text)
    x, order = features.encode(whole).x, np.array([2, 0, 3, 1])
    assert sorted(k for places in features.inputs().values() for k in places) == list(
        range(x.shape[1])
    )
    for name, places in features.inputs().items():
        frame = whole.frame.copy()
        frame[name] = frame[name].iloc[order].set_axis(frame.index)
        expected = x.clone()
        expected[:, places] = x[order][:, places]
        assert torch.equal(features.encode(Table(whole.label, frame, whole.unit)).x, expected)


def test_numbers_are_standardised_by_the_fitted_rows_and_words_one_hot():
    features = fitted(PEOPLE)
    assert features.names == ("age", "town")
    assert "the same in every row: left out" in said(features, "flag")
    deviation = np.std([30, 40, 50])
    expected = [[-10 / deviation, 0, 1], [0, 1, 0], [10 / deviation, 0, 1]]
    torch.testing.assert_close(features.encode(table(PEOPLE)).x, torch.tensor(expected).double())
    other = table("town,extra,age\nOslo,?!,60\n")  # another order, more columns, the old scale
    torch.testing.assert_close(
        features.encode(other).x, torch.tensor([[20 / deviation, 1, 0]]).double()
    )


def test_missing_cells_are_filled_with_the_mean_beside_an_input_that_says_so():
    features = fitted("a,w,y\n1,x,1\n,?,2\n5,z,3\n3,x,4\n")
    x = features.encode(table("a,w\n5,x\nNA,z\n3,\n")).x
    # Columns: a, whether a is missing, and the levels x, z and (missing) of w.
    assert x[:, 0].tolist() == [2 / np.std([1, 3, 5]), 0, 0]
    assert x[:, 1:].tolist() == [[0, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]]
    assert "1 of 4 cells is missing (first: a.csv, line 3): filled with the mean" in said(
        features, "a"
    )
    assert "a separate category" in said(features, "w")


def test_what_new_rows_lack_is_noted_row_by_row_and_no_file_is_refused():
    features = fitted("a,w,y\n1,x,1\n2,z,2\n5,z,3\n")
    found = features.encode(table("a,w\n1,x\n,new\nabc,z\n1e30,x\n,\n"))
    assert found.usable.tolist() == [True, True, True, True, False]
    assert found.notes[0] == ""
    assert found.notes[1].startswith("'a' is missing; 'w' 'new' was not seen in training")
    assert "'a' 'abc' is no number, taken as missing" in found.notes[2]
    assert "standard deviations from the training rows' mean, taken as 1,000" in found.notes[3]
    assert found.notes[4] == "every cell is missing, not predicted"
    assert torch.isfinite(found.x).all()
    torch.testing.assert_close(found.x[1], torch.zeros(3).double())  # the mean, and no level


def test_a_missing_column_is_refused_by_name():
    with pytest.raises(DataError, match=r"new\.csv lacks the column 'town'"):
        fitted(PEOPLE).check_columns("new.csv", ("age", "city"))


@pytest.mark.parametrize(
    ("cells", "values", "notice"),
    [
        (["1,5", "2,25"], [1.5, 2.25], "commas are read as decimals (1,5 is 1.5)"),
        (["1.234,5", "2.000,0"], [1234.5, 2000], "decimals"),
        (["1,234.5", "2,000"], [1234.5, 2000], "commas are read as thousands"),
        (["1 234", "$2 000"], [1234, 2000], "$ left out ($2 000 is 2000), and others have none"),
        (
            ["€ 1'234.5", "12 %"],
            [1234.5, 12],
            "others differ (12 %): do all values have the same unit?",
        ),
        (["12 %", "9%"], [12, 9], "% left out (12 % is 12)"),
        (["1,250 EUR", "-950 EUR"], [1250, -950], "EUR left out (1,250 EUR is 1250)"),
        (["-$5", "$7"], [-5, 7], "$ left out (-$5 is -5)"),
        (["1,234", "2,000"], [1234, 2000], "commas are read as thousands (1,234 is 1234)"),
        (["12,34,567", "98,765"], [1234567, 98765], "thousands (12,34,567 is 1234567)"),
        (["R$ 1.234,50", "R$ 7,00"], [1234.5, 7], "R$ left out (R$ 1.234,50 is 1234.5)"),
        (["₹5", "Rs. 12"], [5, 12], "others differ"),
        (["1.234,50-", "17,5"], [-1234.5, 17.5], "a minus behind a number is read as one in front"),
        (["−1.5 °C", "2 °C"], [-1.5, 2], "°C left out"),
        (["85 km/h", "120 km/h"], [85, 120], "km/h left out"),
        (["1’234.5 m2", "20 m2"], [1234.5, 20], "m2 left out"),
        (["1,234", "-0,126"], [1.234, -0.126], "commas are read as decimals (1,234 is 1.234)"),
    ],
)
def test_numbers_as_people_write_them(cells, values, notice):
    text = "a;y\n" + "".join(f"{cell};{k}\n" for k, cell in enumerate(cells))
    features = fitted(text)
    (part,) = features.parts
    assert part.read(table(text).frame["a"]).tolist() == values
    assert notice in said(features, "a")


def test_a_minus_of_typesetters_is_a_minus():
    """Half of the column, all that is below 0, was missing otherwise."""
    cells = table("a;y\n−1.5;1\n–2;2\n3;A–3\n").frame
    assert cells["a"].tolist() == [-1.5, -2, 3]
    assert cells["y"].tolist() == ["1", "2", "A–3"]


def test_long_numbers_and_codes_stay_apart():
    """120201234567890123 and 120201234567890124 are the same float64, and 1E2 is no 100."""
    shops = [120201234567890123, 120201234567890124]
    text = "a;b;c;y\n" + "".join(
        f"{shops[k % 2]};{['1E2', '100', 'A1'][k % 3]};{10**16 * k};{k}\n" for k in range(40)
    )
    features = fitted(text + ";A1;;40\n")
    levels = tuple(map(str, shops))
    assert features.parts[0] == Category("a", (*levels, "(missing)"))
    assert features.parts[1] == Category("b", ("100", "1E2", "A1"))
    assert isinstance(features.parts[2], Number)
    assert "of more than 15 digits, such as '120201234567890123', are codes" in said(features, "a")
    frame = pd.DataFrame({"a": shops * 20, "y": range(40)})
    assert fit_features(from_frame(frame)).parts[0] == Category("a", levels)
    target, reason = find_target(table(text), "a")
    assert target.classes == levels
    assert reason == "a holds codes of more than 15 digits"


def test_one_column_tells_what_a_comma_means_in_another():
    assert said(fitted("a;b;y\n1,5;1,234;1\n2,5;2,000;2\n"), "b") == (
        "b: commas are read as decimals (1,234 is 1.234)"
    )
    assert "1,234 is 1.234" in said(fitted("b;y\n1,234;1\n2,000;2\n", decimal_comma=True), "b")


def test_points_are_thousands_where_commas_are_decimal():
    """Otherwise 1.200 would be less than 950."""
    text = "area;rent;y\n60,5;1.200;1\n40,5;950;2\n50,0;;3\n"
    features = fitted(text)
    assert "points are read as thousands (1.200 is 1200)" in said(features, "rent")
    rent = next(part for part in features.parts if part.name == "rent")
    assert rent.read(table(text).frame["rent"]).tolist()[:2] == [1200, 950]
    whole = "area;rent;y\n60,5;350.000;1\n40,5;120.000;2\n"
    assert fitted(whole).parts[1].mean == pytest.approx(235_000)
    plain = fitted("area;rent;y\n60.5;1.200;1\n40.5;9.500;2\n")
    assert [part.mean for part in plain.parts] == [50.5, 5.35]


def test_a_few_words_among_numbers_are_missing_and_many_make_a_category():
    numbers = "".join(f"{k},{k}\n" for k in range(30))
    features = fitted(f"a,y\n{numbers}many,1\n")
    assert isinstance(features.parts[0], Number)
    assert "1 of 31 cells is no number (first: 'many', a.csv, line 32)" in said(features, "a")
    assert isinstance(fitted("a,y\n1,1\nx,2\n2,3\n").parts[0], Category)


@pytest.mark.parametrize(
    ("first", "second", "form"),
    [
        ("2024-03-31", "2023-01-02", "%Y-%m-%d"),
        ("31.03.2024", "02.01.2023", "%d.%m.%Y"),
        ("3/31/2024", "1/2/2023", "%m/%d/%Y"),
        ("31/3/2024", "2/1/2023", "%d/%m/%Y"),
        ("31 Mar 2024", "2 Jan 2023", "%d %b %Y"),
        ("2024-03-31 12:30", "2023-01-02 06:00", "%Y-%m-%d %H:%M"),
        ("03/31/2024 12:30:00 PM", "01/02/2023 06:00:00 AM", "%m/%d/%Y %I:%M:%S %p"),
        ("31-MAR-24", "02-JAN-23", "%d-%b-%y"),
        ("2024.03.31", "2023.01.02", "%Y.%m.%d"),
        ("03-31-2024", "01-02-2023", "%m-%d-%Y"),
        ("2024-03-31T12:30:00Z", "2023-01-02T06:00:00+02:00", "ISO8601"),
    ],
)
def test_dates_become_days_and_phases(first, second, form):
    features = fitted(f"d,y\n{first},1\n{second},2\n{first},3\n")
    (part,) = features.parts
    assert isinstance(part, Date)
    assert part.format == form
    assert part.read(table(f"d\n{first}\n").frame["d"]).dt.date.tolist() == [
        pd.Timestamp("2024-03-31").date()
    ]
    x = features.encode(table(f"d\n{first}\n{second}\n?\nsoon\n"))
    assert x.x.shape == (4, len(part.parts))
    assert torch.isfinite(x.x).all()
    assert "'soon' is no date" in x.notes[3]
    assert f"read as {form}" in said(features, "d")


def test_ambiguous_dates_are_said():
    assert "cannot be distinguished" in said(fitted("d,y\n1/2/2024,1\n3/4/2023,2\n"), "d")
    assert "12-31 cannot be distinguished" in said(fitted("d,y\n1-2-2024,1\n3-4-2023,2\n"), "d")


def test_identifiers_free_text_copies_and_empty_columns_are_left_out():
    lines = [f"K{k},{k * 7 + 1},{k % 3},{k % 3},,{k % 5}" for k in range(60)]
    features = fitted("name,row_id,a,copy,nothing,y\n" + "\n".join(lines) + "\n")
    assert features.names == ("a",)
    assert "60 different words in 60 rows, such as 'K0'" in said(features, "name")
    assert "an identifier: left out" in said(features, "row_id")
    assert "the same as 'a'" in said(features, "copy")
    assert "every cell is missing: left out" in said(features, "nothing")
    assert len(features.notices) == 4  # all problems at once
    with pytest.raises(DataError, match="no column to predict 'y' from"):
        fitted("a,y\n1,1\n1,2\n")


def test_one_value_or_nothing_is_a_category():
    (part,) = fitted("a,y\n1,1\n,2\n1,3\n").parts
    assert part == Category("a", ("1", "(missing)"))


def test_names_of_rows_are_left_out_however_few_there_are():
    features = fitted("id,n,y\n" + "".join(f"C{k},{k * k},{k}\n" for k in range(12)))
    assert features.names == ("n",)
    assert "a different word in every row" in said(features, "id")


def test_many_categories_share_an_input():
    count = MOST_LEVELS + 10
    counts = {f"w{k:03d}": count - k // 2 for k in range(count)}
    lines = "".join(f"{word},{k}\n" for word, n in counts.items() for k in range(n))
    features = fitted(f"a,y\n{lines}")
    (part,) = features.parts
    assert len(part.levels) == MOST_LEVELS
    assert OTHER in part.levels
    x = features.encode(table(f"a\nw000\nw{count - 1}\nnew\n")).x
    assert x.sum(1).tolist() == [1, 1, 1]
    assert x[1].equal(x[2])
    assert x[1, part.levels.index(OTHER)] == 1


def test_numbers_can_be_said_to_be_categories():
    codes = "zip,y\n10.0,1\n20,2\n10,3\n"
    assert fitted(codes).width == 1
    assert fitted(codes, categorical=frozenset({"zip"})).parts[0].levels == ("10", "20")
    with pytest.raises(DataError, match="no column 'zap'"):
        fitted(codes, categorical=frozenset({"zap"}))
    assert [canonical(word) for word in ("007", "7.0", "A7")] == ["7", "7", "A7"]


def test_what_is_stored_is_json_and_comes_back_the_same():
    features = fitted("a,w,d,y\n1,x,2024-01-01,1\n,z,2023-02-02,2\n5,z,,3\n")
    again = Features.from_json(json.loads(json.dumps(features.to_json())))
    assert again == features
    rows = table("a,w,d\n2,x,2024-05-05\n,q,?\n")
    assert again.encode(rows).x.equal(features.encode(rows).x)


def test_frames_with_types_of_their_own():
    frame = pd.DataFrame(
        {
            "n": [1, 2, 3],
            "c": pd.Categorical(["u", None, "v"]),
            "t": pd.to_datetime(["2024-01-01", "2024-05-01", None]),
        }
    )
    features = fit_features(from_frame(frame))
    assert [type(part) for part in features.parts] == [Number, Category, Date]
    assert features.encode(from_frame(frame)).x.shape == (3, features.width)


def test_booleans_with_gaps_are_the_same_inputs_as_without():
    full, gaps = [True, False, True, False], [True, None, False, True]
    features = fit_features(from_frame(pd.DataFrame({"b": full, "n": range(4)})))
    encoded = features.encode(from_frame(pd.DataFrame({"b": gaps, "n": range(4)})))
    assert encoded.x[:, 0].tolist() == [1, 0, -1, 1]
    assert encoded.notes == ["", "'b' is missing", "", ""]


@pytest.mark.parametrize("text", ["True False", "TRUE FALSE", "true false"])
def test_truth_is_the_same_from_a_frame_and_from_a_file(text):
    """Whichever of them was learned from: the other's was missing, or a word never seen."""
    yes, no = text.split()
    file = table(f"b,n\n{yes},0\n{no},1\n,2\n{yes},3\n")
    frame = from_frame(pd.DataFrame({"b": [True, False, None, True], "n": range(4)}))
    for learned, new in ((file, frame), (frame, file), (table("b,n\nTrue,0\nFalse,1\n"), file)):
        features = fit_features(learned)
        own = features.encode(new)
        assert own.notes[0] == own.notes[1] == ""
        assert not own.strange
        if learned is not new and len(learned) == len(new):
            assert own.x.equal(features.encode(learned).x)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_standardisation_neither_overflows_nor_vanishes(scale):
    usual = np.random.default_rng(0).normal(3.0, 2.0, size=50)
    values = usual * scale
    one = Table("t", pd.DataFrame({"a": values, "y": values}))
    x = fit_features(one, targets=("y",)).encode(one).x
    assert x.mean().abs() < 1e-6
    torch.testing.assert_close(x.std(correction=0), torch.tensor(1.0).double())
    target = fit_target(one, Target("y", task="regression"))
    expected = [usual.mean() * scale, usual.std() * scale]
    np.testing.assert_allclose([target.mean, target.scale], expected, rtol=1e-9)
    (outcome,) = outcomes("regression", torch.tensor(values)[:, None], Settings(noise="constant"))
    np.testing.assert_allclose([*outcome.mean, *outcome.scale], expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("cells", "task", "reason"),
    [
        (["cat", "dog", "cat", "dog"], "classification", "words"),
        (["0", "1", "1", "0"], "classification", "2 different whole numbers"),
        (["0.5", "1", "1"], "regression", "decimals"),
        (["1.234,5", "1,5", "2,5"], "regression", "decimals"),
        ([str(i) for i in range(30)], "regression", "30 different"),
        ([str(i) for i in range(12)], "regression", "12 different"),
        (["10%", "5%"] * 4, "classification", "2 different whole numbers"),
        ([f"{i}00 EUR" for i in range(12)], "regression", "12 different"),
    ],
)
def test_the_task_is_found_and_the_reason_said(cells, task, reason):
    found = table("y;b\n" + "".join(f"{cell};1\n" for cell in cells))
    target, why = find_target(found, "y")
    assert target.task == task
    assert reason in why


def test_a_comma_means_the_same_in_the_target():
    found = table("a;y\n1,5;1,234\n2,5;2,000\n")
    assert find_target(found, "y", "regression")[0].decimal == ","
    alone = table("y;b\n1,234;1\n2,000;2\n")
    assert find_target(alone, "y", "regression")[0].decimal == "."
    assert find_target(alone, "y", "regression", decimal_comma=True)[0].decimal == ","


def test_classes_have_an_order_and_one_name_however_they_are_written():
    found = table("y\n10\n2\n2.0\n10\n")
    target = fit_target(found, find_target(found, "y")[0])
    assert target.classes == ("2", "10")
    assert target.shares == (0.5, 0.5)
    assert target.encode(found).tolist() == [1, 0, 0, 1]
    assert Target.from_json(json.loads(json.dumps(target.to_json()))) == target
    assert target.learned(table("y\n3\n10\n")).tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "asked", "part"),
    [
        ("y\n1\n1\n", "classification", "one class only"),
        ("y\n1\n1\n", "regression", "is 1 in every row"),
        ("y\na\nb\nc\n", "classification", "too many"),
        ("y\n1\nx\n2\n", None, "'x' .a.csv, line 3.: correct such cells or.*--task classification"),
        ("y\n1\nx\n2\nz\n", "regression", "'x' .a.csv, line 3., in 2 of 4 rows: .* empty them"),
        ("y;b\n;1\n;2\n", None, "missing in all 2 rows: fill it in"),
        ("y\n350k\n3.6M\n99th\n", None, "such as '350k': too many .* write numbers with digits"),
        ("y\n1\n2\n", "guessing", "classification or regression or count or ordinal"),
        ("y\na\nb\n", "regression", "holds words such as 'a' .a.csv, line 2."),
        ("y\n1\n-2\n", "count", "holds -2, and counts are 0, 1, 2"),
    ],
)
def test_a_target_that_cannot_be_learned_is_refused(text, asked, part):
    with pytest.raises(DataError, match=part):
        fit_target(table(text), find_target(table(text), "y", asked)[0])


def test_the_split_keeps_classes_in_proportion_and_depends_on_the_seed_alone():
    labels = np.array([0] * 80 + [1] * 20 + [2])
    inside, outside = split(101, 0.2, labels, seed=3)
    assert sorted([*inside, *outside]) == list(range(101))
    assert np.bincount(labels[outside], minlength=3).tolist() == [16, 4, 0]
    again = split(101, 0.2, labels, seed=3)[1]
    np.testing.assert_array_equal(outside, again)
    assert split(101, 0.2, labels, seed=4)[1].tolist() != outside.tolist()
    assert len(split(101, 0.0, None, seed=0)[1]) == 0
    assert [len(part) for part in split(200_000, 0.2, None, seed=0)] == [180_000, 20_000]
    with pytest.raises(DataError, match="--hold-out"):
        split(10, 1.0, None, seed=0)
