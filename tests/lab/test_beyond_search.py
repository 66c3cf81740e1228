"""The search of the table beyond the paper, on functions whose lowest point is known."""

from __future__ import annotations

import pytest

from lab.beyond.search import (
    OFF,
    Axis,
    Round,
    full,
    outward,
    ranking,
    search,
)

AXES = (Axis(1.0, 2.0, (OFF, 0, 1)), Axis(10.0, 3.0, (-1, 0, 1)))


def bowl(lowest, *, broken=()):
    """Scores with their lowest point at a cell; ``broken`` cells diverge."""
    rounds = []

    def score(count, cells):
        rounds.append(cells)
        height = {c: sum((a - b) ** 2 for a, b in zip(c, lowest, strict=True)) for c in cells}
        found = [None if cell in broken else {"score": float(height[cell])} for cell in cells]
        return Round(found, complete=True, updates=5, seconds=1.0, wall=2.0)

    return score, rounds


def test_a_level_is_a_power_of_the_ratio():
    assert [AXES[1].value(k) for k in (-1, 0, 2)] == [3.33, 10.0, 90.0]
    assert AXES[0].value(OFF) == 0
    assert len(full(AXES)) == 9


def test_it_goes_outward_until_the_best_is_inside(tmp_path):
    score, rounds = bowl((3, -2))
    found = search(AXES, full(AXES), score, extensions=5, file=tmp_path / "s.json")
    assert next(iter(found.ranked)) == (3, -2)
    assert found.inside
    assert found.complete
    assert len(rounds) == len(found.rounds) > 2
    tried = [cell for cells in rounds for cell in cells]
    assert len(tried) == len(set(tried))
    assert not (tmp_path / "s.json").exists()


def test_it_stops_at_its_last_round_and_says_where(tmp_path):
    score, rounds = bowl((9, 0))
    found = search(AXES, full(AXES), score, extensions=1, file=tmp_path / "s.json")
    assert not found.inside
    assert len(rounds) == 2
    assert next(iter(found.ranked))[0] == 2


def test_the_best_inside_needs_one_round(tmp_path):
    axes = (Axis(1.0, 2.0, (-1, 0, 1)), Axis(1.0, 2.0, (0,), grows=False))
    score, rounds = bowl((0, 0))
    # A cell apart, better than all: ranked, but it does not lead the search.
    cells = [*full(axes), (0, 10)]
    found = search(axes, cells, score, extensions=3, file=tmp_path / "s.json")
    assert len(rounds) == 1
    assert len(found.ranked) == 4
    assert outward(axes, {(0, 0): 1.0, (1, 0): 2.0, (-1, 0): 2.0, (3, 10): 0.0}) == []


def test_diverged_cells_are_neither_ranked_nor_neighbours(tmp_path):
    score, _ = bowl((0, 0), broken={(0, 1)})
    found = search(AXES, full(AXES), score, extensions=0, file=tmp_path / "s.json")
    assert (0, 1) not in found.ranked
    assert ranking({(0,): 1.0, (1,): None}) == [(0,)]
    everything, _ = bowl((0, 0), broken=set(full(AXES)))
    with pytest.raises(RuntimeError, match="every chain"):
        search(AXES, full(AXES), everything, extensions=0, file=tmp_path / "t.json")


def test_out_of_time_it_goes_on_with_the_round_it_was_in(tmp_path):
    file = tmp_path / "s.json"
    score, rounds = bowl((3, 0))

    def short(count, cells):
        found = score(count, cells)
        return Round(found.found, complete=count < 1, updates=3, seconds=1.0, wall=1.0)

    first = search(AXES, full(AXES), short, extensions=5, file=file)
    assert not first.complete
    assert file.exists()
    rounds.clear()
    again = search(AXES, full(AXES), score, extensions=5, file=file)
    assert next(iter(again.ranked)) == (3, 0)
    assert len(rounds) == len(again.rounds) - 1  # the first round was not run again
    assert again.complete
    assert not file.exists()


def test_a_round_without_a_draw_leaves_the_choice_to_those_before_it(tmp_path):
    score, _ = bowl((3, 0))

    def late(count, cells):
        if count:
            raise TimeoutError("no draw was kept")
        return score(count, cells)

    found = search(AXES, full(AXES), late, extensions=5, file=tmp_path / "s.json")
    assert next(iter(found.ranked)) == (1, 0)
    assert not found.complete
    assert not found.inside
    assert len(found.rounds) == 1
    assert search(AXES, full(AXES), score, extensions=5, file=tmp_path / "s.json").complete

    def never(count, cells):
        raise TimeoutError("no draw was kept")

    with pytest.raises(TimeoutError):
        search(AXES, full(AXES), never, extensions=5, file=tmp_path / "t.json")
