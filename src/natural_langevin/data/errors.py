"""Errors of datasets."""

from natural_langevin._internal.messages import bounded


class DataError(ValueError):
    """A table (CSV, NPZ) that cannot be read or used, or a folder of data that is none; the message
    names the place and a remedy."""

    def __init__(self, message: str = "") -> None:
        super().__init__(bounded(message))  # names of columns may have any length


class CorruptDataError(ValueError):
    """A file is there, but it is not the file its name promises."""


class WrongDatasetError(CorruptDataError):
    """A file is intact, but it belongs to another dataset this package knows."""


class DownloadError(OSError):
    """One address could not deliver one file; the next one may."""


class DataUnavailableError(RuntimeError):
    """A dataset is in no place that was tried; the message lists them all, and the remedy."""
