"""The UCI protocol: its tables and splits, a fit, resuming, and the table beside published rows."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.results import PartsError
from lab.uci import data, table
from lab.uci.run import UciError, merge, run
from natural_langevin.data.errors import CorruptDataError
from natural_langevin.tabular.settings import Settings

QUICK = Settings(hidden=(8,), steps=20, chains=2, folds=2)
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", data.TABLES)
def test_every_split_holds_out_a_tenth_and_trains_on_the_rest(name):
    arrays = data.load(name)
    count = len(arrays["y"])
    for number in range(data.TABLES[name].splits):
        x, y, x_test, y_test = data.split(arrays, number)
        assert len(x) + len(x_test) == len(y) + len(y_test) == count
        assert len(y_test) == len(np.unique(arrays[f"test_{number}"]))
        assert len(y_test) == pytest.approx(count / 10, abs=1)
    assert np.isfinite(arrays["x"]).all()
    assert np.isfinite(arrays["y"]).all()


def test_an_altered_file_is_refused(monkeypatch):
    monkeypatch.setitem(data.TABLES, "yacht", replace(data.TABLES["yacht"], sha256="0"))
    with pytest.raises(CorruptDataError, match="altered"):
        data.load("yacht")


def test_it_goes_on_where_it_was_and_refuses_other_settings(tmp_path):
    said = []
    first = run(["yacht"], tmp_path / "u.json", splits=1, settings=QUICK, say=said.append)
    assert [row["split"] for row in first["rows"]] == [0]
    again = run(["yacht"], tmp_path / "u.json", splits=2, settings=QUICK, say=said.append)
    assert again["rows"][0] == first["rows"][0]
    assert len(said) == 2
    assert "yacht 2/20: log-likelihood" in said[1]
    assert json.loads((tmp_path / "u.json").read_text()) == again
    y = data.split(data.load("yacht"), 0)[1]
    assert again["rows"][0]["rmse"] < 2 * y.std()
    with pytest.raises(UciError, match="other settings"):
        run(["yacht"], tmp_path / "u.json", settings=replace(QUICK, steps=30))
    with pytest.raises(UciError, match="no table 'yot'"):
        run(["yot"], tmp_path / "v.json")


def test_parts_of_several_processes_are_joined_into_what_one_would_have_written(tmp_path):
    parts = tmp_path / "parts"
    for number in (1, 0):
        run(["yacht"], parts / f"yacht-{number}.json", only=[number], settings=QUICK)
    joined = merge(parts, tmp_path / "joined.json")
    whole = run(["yacht"], tmp_path / "whole.json", splits=2, settings=QUICK)

    def scores(results):
        return [(row["split"], row["log_likelihood"], row["chosen"]) for row in results["rows"]]

    assert scores(joined) == scores(whole)
    assert {key: joined[key] for key in ("settings", "commit")} == {
        key: whole[key] for key in ("settings", "commit")
    }
    assert json.loads((tmp_path / "joined.json").read_text()) == joined
    with pytest.raises(UciError, match="yacht has no split 20: they are 0 to 19"):
        run(["yacht"], tmp_path / "v.json", only=[20])
    altered = joined | {"settings": replace(QUICK, steps=30).to_json()}
    (parts / "z.json").write_text(json.dumps(altered))
    with pytest.raises(PartsError, match=r"z.json has other settings than .*yacht-0.json"):
        merge(parts, tmp_path / "joined.json")
    with pytest.raises(PartsError, match="no results"):
        merge(tmp_path / "nowhere", tmp_path / "joined.json")


def test_the_table_counts_splits_and_the_page_has_its_place(tmp_path):
    rows = [
        {"table": "yacht", "split": k, "log_likelihood": -1.0 - k, "rmse": 0.5, "cpu_seconds": 3.0}
        for k in range(2)
    ]
    page = (ROOT / "lab" / "notes" / "uci.md").read_text()
    text = table.with_table(page, {"rows": rows})
    assert "| deep ensemble (2017) | -2.41 |" in text
    assert "-1.50 ± 0.50 (2 splits) |" in text
    table.plot({"rows": rows}, tmp_path / "u.png")
    assert (tmp_path / "u.png").stat().st_size > 1000
