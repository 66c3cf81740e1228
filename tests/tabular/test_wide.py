"""Wide tables: the time to read, look at and encode a table is linear in its columns."""

import io
import time

import numpy as np

from natural_langevin.data.csv_file import CsvFile
from natural_langevin.data.tables import TrainingData
from natural_langevin.tabular.fit import prepare
from natural_langevin.tabular.settings import Settings


def seconds(columns: int) -> float:
    """Of the processor, not of the clock: other work on the machine does not count."""
    rng = np.random.default_rng(0)
    lines = [",".join([*(f"c{k}" for k in range(columns)), "y"])]
    lines += [",".join(f"{v:.4f}" for v in rng.normal(size=columns + 1)) for _ in range(12)]
    content = "\n".join(lines).encode()
    started = time.process_time()
    table = CsvFile(io.BytesIO(content), label="wide").table()
    found = prepare(TrainingData(table, None, "y"), source="wide", settings=Settings(hidden=(2,)))
    x = found.run.features.encode(found.train).x
    assert x.shape == (10, columns)
    return time.process_time() - started


def test_eight_times_as_many_columns_take_about_eight_times_as_long():
    seconds(50)  # imports what is imported when it is needed
    small = min(seconds(150) for _ in range(2))
    large = (seconds(1200) for _ in range(2))  # the second only where the first took too long
    assert any(one < 8 * small * 2 for one in large)  # 64 times, were it quadratic
