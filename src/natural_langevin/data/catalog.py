"""Datasets by name, for the command line and for configurations."""

from __future__ import annotations

import dataclasses
import logging
import os

from natural_langevin.data.dataset import Dataset, digits
from natural_langevin.data.errors import DataUnavailableError
from natural_langevin.data.images import fashion_mnist, mnist

NAMES = ("auto", "mnist", "fashion-mnist", "digits")

logger = logging.getLogger("natural_langevin")


def load(
    name: str, *, data_dir: str | os.PathLike[str] | None = None, download: bool = True
) -> Dataset:
    """The dataset called `name`: "mnist", "fashion-mnist", "digits" or "auto".

    "auto" is MNIST when it can be had and digits otherwise; `source` and the log of
    `natural_langevin` say which. `data_dir` and `download` are as in `mnist`; digits need neither.

    >>> load("digits").num_classes
    10
    """
    if name == "mnist":
        return mnist(data_dir, download=download)
    if name == "fashion-mnist":
        return fashion_mnist(data_dir, download=download)
    if name == "digits":
        return digits()
    if name == "auto":
        return _auto(data_dir, download=download)
    raise ValueError(f"unknown dataset {name!r}; the valid names are {', '.join(NAMES)}")


def _auto(data_dir: str | os.PathLike[str] | None, *, download: bool) -> Dataset:
    # A corrupt file of the user's is not "cannot be had": that error goes through.
    try:
        dataset = mnist(data_dir, download=download)
    except DataUnavailableError as unavailable:
        logger.warning("dataset auto: using digits instead of MNIST. %s", unavailable)
        try:
            dataset = digits()
        except ImportError as error:
            raise DataUnavailableError(f"{unavailable}\nAnd {error}.") from error
        return dataclasses.replace(
            dataset, source=f"auto: {dataset.source}, because MNIST is not available"
        )
    logger.info("dataset auto: using %s", dataset.source)
    return dataclasses.replace(dataset, source=f"auto: {dataset.source}")
