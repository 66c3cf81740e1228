"""Whose log a line is: with several processes, every record of this library knows its rank."""

from __future__ import annotations

import logging

log = logging.getLogger("natural_langevin")


class _Rank(logging.Filter):
    """``%(rank)s`` for a format of one's own; where nobody set up logging, the message says it."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def filter(self, record: logging.LogRecord) -> bool:
        record.rank = self.rank
        if not (log.handlers or logging.getLogger().handlers):
            record.msg = f"rank {self.rank}: {record.msg}"
        return True


def name_rank(rank: int) -> None:
    """Adds the rank to every log record from now on; calling it again changes nothing."""
    if not any(isinstance(one, _Rank) for one in log.filters):
        log.addFilter(_Rank(rank))
