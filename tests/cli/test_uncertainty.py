"""How sure is it? The answer in words, in characters and in a picture, from the same numbers."""

import io
import json
import math

import pytest
import torch
from rich.console import Console

from natural_langevin.cli import uncertainty
from natural_langevin.cli.pages.picture import draw, write_picture
from natural_langevin.cli.pages.schema import ResultsError
from natural_langevin.tabular.scoring import answers
from natural_langevin.tabular.sureness import sentences

CLASSES = {
    "task": "classification",
    "rows": 100,
    "answers": {
        "sure": [0.0, 0.5, 0.9, 0.99],
        "answered": [100, 100, 83, 0],
        "right": [93, 93, 81, 0],
        "confidence": 0.95,
        "spread": 0.02,
    },
    "reliability": {"confidence": [0.6, 0.95], "accuracy": [0.7, 0.98], "count": [17, 83]},
}
NUMBERS = {
    "task": "regression",
    "rows": 100,
    "scores": {"coverage": 0.80},
    "coverage": {"level": [0.5, 0.9], "observed": [0.45, 0.80]},
    "intervals": {
        "half": [8.0, 10.0, 13.0],
        "blind": 40.0,
        "rows": {
            "truth": [1.0, 30.0],
            "mean": [2.0, 15.0],
            "low": [-8.0, 4.0],
            "high": [12.0, 26.0],
        },
    },
}


def shown(quality, width: int, encoding: str = "utf-8", **options) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
    console = Console(file=file, width=width, **options)
    uncertainty.show(quality, console)
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def test_the_sentences_say_what_the_numbers_say():
    first, second = sentences(CLASSES)
    assert "at least 90 % sure, it answers 83 % of the rows (83 of 100)" in first
    assert "right on 98 % of those (81 of 83)" in first
    assert "says it is 95 % sure" in second
    assert second.endswith("as sure as it should be, as far as 100 rows can tell.")
    first, second = sentences(NUMBERS)
    assert "hold the truth in 80 of 100 rows (80 %): too narrow, by more than chance" in first
    assert "± 10 (± 8 where it is surest, ± 13 where it is least sure)" in second
    assert sentences({"rows": 0}) == []


@pytest.mark.parametrize(
    ("right", "verdict"), [(80, "over-confident"), (95, "as sure as"), (100, "under-confident")]
)
def test_a_gap_is_judged_against_chance(right, verdict):
    found = {**CLASSES["answers"], "right": [right, right, 80, 0]}
    assert verdict in sentences({"answers": found})[1]
    few = {**found, "answered": [10, 10, 8, 0], "right": [9, 9, 8, 0]}
    assert "too few to say" in sentences({"answers": few})[1]


def thirds(*shares: float, rows: int = 33) -> list[dict]:
    names = ("the lowest third", "the middle third", "the highest third")
    spread = math.sqrt(0.09 / rows)
    return [
        {"name": f"{name} of predictions", "rows": rows, "said": 0.9, "share": share,
         "spread": spread}
        for name, share in zip(names, shares, strict=True)
    ]  # fmt: skip


def test_right_on_average_is_not_enough():
    """90 % in all, but 100, 98 and 74 % by thirds of the prediction."""
    average = NUMBERS | {"scores": {"coverage": 0.9}}
    assert "as sure as it should be" in sentences(average | {"slices": thirds(0.91, 0.9, 0.88)})[0]
    said = sentences(average | {"slices": thirds(1.0, 0.98, 0.74, rows=100)})[0]
    assert "as sure as it should be" not in said
    assert "right on average, but too narrow for the highest third of predictions (74 %" in said
    assert "too wide for the lowest third" in said
    few = sentences(average | {"slices": thirds(1.0, 0.9, 0.7, rows=10)})[0]
    assert "as sure as it should be" in few  # seven of ten prove nothing


def test_nobody_is_said_to_be_surer_than_they_are():
    found = {**CLASSES["answers"], "answered": [100, 40, 0, 0], "right": [60, 30, 0, 0]}
    first = sentences({"answers": found})[0]
    assert first.startswith("It is never 90 % sure. If it only answers when it is at least 50 %")
    none = {**found, "answered": [100, 0, 0, 0], "right": [60, 0, 0, 0]}
    assert sentences({"answers": none})[0] == "It is less than 50 % sure of every row."


def test_answers_against_counting_by_hand():
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(50, 4, generator=generator, dtype=torch.float64).softmax(1)
    p[:20] = torch.tensor([0.93, 0.04, 0.02, 0.01], dtype=torch.float64)
    y = torch.randint(4, (50,), generator=generator)
    found, rows = answers(p, y), list(zip(p.tolist(), y.tolist(), strict=True))
    for level, n, good in zip(found["sure"], found["answered"], found["right"], strict=True):
        chosen = [(q.index(max(q)), k) for q, k in rows if max(q) >= level]
        assert n == len(chosen)
        assert good == sum(a == b for a, b in chosen)
    largest = [max(q) for q, _ in rows]
    assert math.isclose(found["confidence"], sum(largest) / 50)
    assert math.isclose(found["spread"], math.sqrt(sum(c * (1 - c) for c in largest)) / 50)
    assert answers(p * math.nan, y) == {}


@pytest.mark.parametrize("quality", [CLASSES, NUMBERS])
@pytest.mark.parametrize("width", [120, 80, 50, 36])
def test_it_fits_the_terminal_and_a_file_gets_no_control_characters(quality, width):
    text = shown(quality, width)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= width
    assert "83 %" in text or "80 %" in text
    plain = shown(quality, width, encoding="ascii")
    assert plain.isascii()
    assert "?" in plain.splitlines()[1]
    assert "+/-" in plain or quality is CLASSES


def test_colour_is_for_terminals_that_want_it(monkeypatch):
    colour = {"force_terminal": True, "color_system": "standard", "width": 80}
    assert "\x1b[3" in shown(NUMBERS, encoding="utf-8", **colour)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in shown(NUMBERS, encoding="utf-8", **colour)


@pytest.mark.parametrize("quality", [CLASSES, NUMBERS])
def test_the_picture_has_both_panels_and_appears_whole_or_not_at_all(quality, tmp_path):
    path = tmp_path / "how_sure.png"
    write_picture(
        quality, path, title="cost in $ and $, from a.csv\x1b[1m", words=sentences(quality)
    )
    assert path.read_bytes()[:4] == b"\x89PNG"
    figure = draw(quality, title="", words=[])
    assert [bool(axes.get_title()) for axes in figure.axes] == [True, True]
    before = path.read_bytes()
    broken = {k: v for k, v in quality.items() if k not in ("reliability", "coverage")}
    with pytest.raises(ResultsError, match="damaged"):
        write_picture(broken, path, title="", words=[])
    assert path.read_bytes() == before


def test_the_truth_outside_its_interval_is_seen(numbers):
    """The regression of a whole run: counts of the sentence, the drawing and quality.json agree."""
    quality = json.loads((numbers / "quality.json").read_text())
    rows = quality["intervals"]["rows"]
    inside = [
        low <= truth <= high
        for low, truth, high in zip(rows["low"], rows["truth"], rows["high"], strict=True)
    ]
    assert sum(inside) == round(quality["scores"]["coverage"] * quality["rows"])
    said = (numbers.parent / "said.txt").read_text()
    assert sentences(quality)[0] in " ".join(said.split())
    assert str(numbers / "how_sure.png") in said


def test_without_matplotlib_the_rest_is_said(monkeypatch, tmp_path):
    import natural_langevin.cli.pages.picture as picture

    def missing(**_):
        raise ImportError("plots need matplotlib: pip install 'natural-langevin[report]'")

    monkeypatch.setattr(picture, "new_figure", missing)
    console = Console(file=io.StringIO(), width=200)
    uncertainty.picture(CLASSES, tmp_path, "title", console)
    assert "natural-langevin[report]" in console.file.getvalue()
    assert not list(tmp_path.iterdir())
