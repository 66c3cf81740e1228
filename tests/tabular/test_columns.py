"""Columns become inputs and targets: standardised by the training rows, one-hot, or refused."""

import io
import json

import numpy as np
import pytest
import torch

from natural_langevin.data import DataError
from natural_langevin.data.csv_file import CsvFile
from natural_langevin.data.table import Column, Table
from natural_langevin.tabular.features import Features, fit_features
from natural_langevin.tabular.fit import split
from natural_langevin.tabular.target import Target, find_task, fit_classes, fit_target


def table(text: str) -> Table:
    return CsvFile(io.BytesIO(text.encode()), label="a.csv").table()


PEOPLE = table("age,town,flag,y\n30,Rome,1,a\n40,Oslo,1,b\n50,Rome,1,a\n")
LABELS = table("y\na\nb\na\na\n")


def test_numbers_are_standardised_by_the_fitted_rows_and_words_one_hot():
    features = fit_features(PEOPLE, target="y")
    assert features.names == ("age", "town")
    assert features.constant == ("flag",)
    x = features.encode(PEOPLE)
    deviation = np.std([30, 40, 50])
    expected = [[-10 / deviation, 0, 1], [0, 1, 0], [10 / deviation, 0, 1]]
    torch.testing.assert_close(x, torch.tensor(expected, dtype=torch.float32))
    other = table("town,extra,age\nOslo,?!,60\n")  # another order, more columns, the old scale
    torch.testing.assert_close(
        features.encode(other), torch.tensor([[20 / deviation, 1, 0]], dtype=torch.float32)
    )


def test_what_is_stored_is_json_and_comes_back_the_same():
    features = fit_features(PEOPLE, target="y")
    again = Features.from_json(json.loads(json.dumps(features.to_json())))
    assert again == features
    target = fit_target(LABELS, "y", fit_classes(LABELS, "y"))
    assert target.shares == (0.75, 0.25)
    assert Target.from_json(json.loads(json.dumps(target.to_json()))) == target


def test_a_missing_column_is_refused_by_name():
    features = fit_features(PEOPLE, target="y")
    with pytest.raises(DataError, match=r"new\.csv lacks the column 'town'"):
        features.check_columns("new.csv", ("age", "city"))


def test_a_level_that_training_never_saw_is_refused_by_place():
    features = fit_features(PEOPLE, target="y")
    with pytest.raises(DataError, match=r"line 3: column 'town' is 'Paris'.*Oslo, Rome"):
        features.encode(table("age,town\n1,Rome\n2,Paris\n"))


def test_a_value_from_another_unit_is_refused_by_place():
    features = fit_features(PEOPLE, target="y")
    with pytest.raises(DataError, match=r"line 2: column 'age' is .* standard deviations"):
        features.encode(table("age,town\n1e30,Rome\n"))


def test_a_level_of_held_out_rows_alone_has_its_input():
    whole = table("a,y\n" + "x,1\nz,2\n" * 3 + "rare,1\n")
    features = fit_features(whole.take(np.arange(6)), target="y")
    assert features.encode(whole).shape == (7, 3)


def test_numbers_can_be_said_to_be_categories():
    codes = table("zip,y\n10,1\n20,2\n10,3\n")
    assert fit_features(codes, target="y").width == 1
    assert fit_features(codes, target="y", categorical=frozenset({"zip"})).width == 2
    with pytest.raises(DataError, match="no column 'zap'"):
        fit_features(codes, target="y", categorical=frozenset({"zap"}))


def test_a_stray_word_and_too_many_levels_are_refused_with_the_option_that_helps():
    with pytest.raises(DataError, match=r"'x' \(a.csv, line 3\).*--categorical a"):
        fit_features(table("a,y\n1,1\nx,2\n2,3\n"), target="y")
    many = "a,y\n" + "".join(f"w{i},{i}\n" for i in range(60))
    with pytest.raises(DataError, match=r"60 different values.*--drop a"):
        fit_features(table(many), target="y")
    dates = "a,when,y\n" + "".join(f"w{i},{i + 1}.{i % 12 + 1}.2024,{i}\n" for i in range(60))
    with pytest.raises(DataError) as caught:
        fit_features(table(dates), target="y")
    for part in ("'a' has 60 different values", "'when' has 60 dates", "--drop a --drop when"):
        assert part in str(caught.value)
    with pytest.raises(DataError, match="every other one is constant"):
        fit_features(table("a,y\n1,1\n1,2\n"), target="y")


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_standardisation_neither_overflows_nor_vanishes(scale):
    values = np.random.default_rng(0).normal(3.0, 2.0, size=50) * scale
    one = Table("t", {"a": Column(values), "y": Column(values)}, np.arange(50))
    x = fit_features(one, target="y").encode(one)
    assert x.mean().abs() < 1e-6
    torch.testing.assert_close(x.std(correction=0), torch.tensor(1.0))
    y = fit_target(one, "y", ()).encode(one)
    torch.testing.assert_close(y, x)


@pytest.mark.parametrize(
    ("cells", "task", "reason"),
    [
        (["cat", "dog", "cat"], "classification", "words"),
        (["0", "1", "1"], "classification", "2 different whole numbers"),
        (["0.5", "1", "1"], "regression", "decimals"),
        ([str(i) for i in range(30)], "regression", "30 different"),
    ],
)
def test_the_task_is_found_and_the_reason_said(cells, task, reason):
    found = table("y\n" + "\n".join(cells) + "\n")
    assert find_task(found, "y")[0] == task
    assert reason in find_task(found, "y")[1]
    assert find_task(found, "y", "regression")[0] == "regression"


def test_classes_have_an_order_and_one_name_however_they_are_written():
    found = table("y\n10\n2\n2.0\n10\n")
    classes = fit_classes(found, "y")
    assert classes == ("2", "10")
    target = fit_target(found, "y", classes)
    assert target.shares == (0.5, 0.5)
    assert target.encode(found).tolist() == [1, 0, 0, 1]
    with pytest.raises(DataError, match=r"line 2: the target 'y' is '3'"):
        target.encode(table("y\n3\n"))


@pytest.mark.parametrize(
    ("text", "asked", "part"),
    [
        ("y\n1\n1\n", "classification", "one class only"),
        ("y\n1\n1\n", "regression", "is 1 in every row"),
        ("y\na\nb\nc\n", "classification", "too many"),
        ("y\n1\nx\n2\n", None, "--task classification"),
        ("y\n1\n2\n", "guessing", "classification or regression"),
        ("y\na\nb\n", "regression", "holds words such as 'a'"),
    ],
)
def test_a_target_that_cannot_be_learned_is_refused(text, asked, part):
    def learn(found: Table) -> Target:
        task, _ = find_task(found, "y", asked)
        return fit_target(found, "y", fit_classes(found, "y") if task == "classification" else ())

    with pytest.raises(DataError, match=part):
        learn(table(text))


def test_the_split_keeps_classes_in_proportion_and_depends_on_the_seed_alone():
    labels = np.array([0] * 80 + [1] * 20 + [2])
    inside, outside = split(101, 0.2, labels, seed=3)
    assert sorted([*inside, *outside]) == list(range(101))
    assert np.bincount(labels[outside], minlength=3).tolist() == [16, 4, 0]
    again = split(101, 0.2, labels, seed=3)[1]
    np.testing.assert_array_equal(outside, again)
    assert split(101, 0.2, labels, seed=4)[1].tolist() != outside.tolist()
    assert len(split(101, 0.0, None, seed=0)[1]) == 0
    with pytest.raises(DataError, match="--hold-out"):
        split(10, 1.0, None, seed=0)
