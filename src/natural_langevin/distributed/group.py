"""The process group of a run, with a time limit for every exchange.

Processes are started by ``torchrun``, never from here. Numbers travel by the collectives of
``torch.distributed`` (gloo on the CPU, NCCL on GPUs); texts and verdicts travel by the key-value
store through which the processes found each other. It answers on every backend, it has a time
limit of its own for every question, and it can say who has answered and who has not:

    group = join(device)
    group.agree("the settings", {"step_size": ..., "seed": ...})  # or an error on every rank
    with group.together("preparing the data"):                    # fails on one rank: on all
        ...
    with group.waiting("the sum of the gradients"):               # a collective of torch's
        torch.distributed.all_reduce(buffer)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from natural_langevin._internal.fingerprints import stable_repr
from natural_langevin._internal.messages import bounded
from natural_langevin._internal.provenance import differing

#: Seconds that a rank which has lost the others waits for their messages on where they are.
GRACE = 3.0

#: An attribute of errors that the other ranks have been told of.
_REPORTED = "_natural_langevin_reported"


class GroupError(RuntimeError):
    """The processes of a run do not agree, one of them failed, or one of them did not arrive."""


@dataclass(frozen=True)
class _Message:
    """What one rank says at a meeting: where it is, and a value or the error that it met."""

    label: str
    value: str = ""
    error: str | None = None

    def encode(self) -> str:
        return json.dumps([self.label, self.value, self.error])

    @staticmethod
    def decode(text: bytes) -> _Message:
        return _Message(*json.loads(text))


class Group:
    """The processes of one run. ``rank`` of ``world``, this one computing on ``device``.

    Every rank calls the same methods in the same order; a rank that does not is named in the
    error that the others get after ``timeout`` seconds."""

    def __init__(
        self, store: Store, rank: int, world: int, device: torch.device, timeout: float
    ) -> None:
        self.rank, self.world, self.device, self.timeout = rank, world, device, timeout
        self._store = store
        self._meetings = 0
        self._broken: str | None = None

    @property
    def first(self) -> bool:
        """Whether this is the rank that does what is to be done once."""
        return self.rank == 0

    def exchange(self, label: str, value: str = "") -> list[str]:
        """Every rank's ``value``, a short text, by rank; also a barrier called ``label``."""
        return self._meet(_Message(label, value))

    def barrier(self, label: str) -> None:
        """Returns when all ranks are here."""
        self.exchange(label)

    def agree(self, label: str, settings: Mapping[str, Any]) -> None:
        """Compares settings between ranks; a difference is the same error on every rank.

        Only a digest is compared; the settings themselves are sent when digests differ."""
        mine = {
            name: json.dumps(value, sort_keys=True, default=stable_repr)
            for name, value in settings.items()
        }
        text = json.dumps(mine, sort_keys=True)
        digests = self.exchange(label, hashlib.sha256(text.encode()).hexdigest())
        if len(set(digests)) > 1:
            everybody = [json.loads(t) for t in self.exchange(f"{label}, in full", text)]
            remedy = "Start every rank with the same script, arguments and data"
            raise GroupError(f"{differences(label, dict(enumerate(everybody)))}. {remedy}")

    @contextlib.contextmanager
    def together(self, label: str) -> Iterator[None]:
        """A block that succeeds on all ranks or fails on all: on the rank where it failed with
        its own error, on the others with a ``GroupError`` that quotes it. Blocks may be nested."""
        try:
            yield
        except BaseException as error:
            self._report_failure(label, error)
            raise
        self.barrier(label)

    def _report_failure(self, label: str, error: BaseException) -> None:
        """Leaves a message of an error where the others meet next, unless they know it already."""
        known = isinstance(error, GroupError) or hasattr(error, _REPORTED)
        if known or self._broken is not None:
            return
        setattr(error, _REPORTED, True)
        with contextlib.suppress(RuntimeError):  # whoever keeps the store may have gone
            self._store.set(self._key(self.rank), _Message(label, error=error_text(error)).encode())
        self._meetings += 1

    @contextlib.contextmanager
    def waiting(self, label: str) -> Iterator[None]:
        """Around collectives of torch's: their failure becomes an error that says who is missing.

        Any other error leaves a message for those who wait, and is raised as it is. On GPUs, NCCL's
        watchdog may end the process before; its message is in the log."""
        try:
            yield
        except BaseException as error:
            if not _of_communication(error):
                self._report_failure(label, error)
                raise
            raise GroupError(self._lost(label, str(error))) from error

    def close(self) -> None:
        """Leaves when all are done: the process that keeps the store must not go first."""
        self.barrier("the end of the run")
        if dist.is_initialized():
            dist.destroy_process_group()

    def _key(self, rank: int, meeting: int | None = None) -> str:
        return f"{self._meetings if meeting is None else meeting}/{rank}"

    def _meet(self, message: _Message) -> list[str]:
        if self._broken is not None:
            raise GroupError(f"{self._broken} (noticed before; start the run again)")
        keys = [self._key(rank) for rank in range(self.world)]
        try:
            self._store.set(keys[self.rank], message.encode())
            self._store.wait(keys, timedelta(seconds=self.timeout))
            found = [_Message.decode(text) for text in self._store.multi_get(keys)]
        except RuntimeError as error:
            raise GroupError(self._absent(message.label, error)) from error
        if self._meetings:  # all are here, so all have read what was said at the last meeting
            self._store.delete_key(self._key(self.rank, self._meetings - 1))
        self._meetings += 1
        _check(found)
        return [one.value for one in found]

    def _absent(self, label: str, error: RuntimeError) -> str:
        """What to say when a meeting did not come about."""
        try:
            missing = [r for r in range(self.world) if not self._store.check([self._key(r)])]
        except RuntimeError:
            self._broken = f"the processes lost contact at {label!r}: {error}"
        else:
            self._broken = self._report(label, missing, f"within {self.timeout:g} seconds")
        return self._broken

    def _lost(self, label: str, cause: str) -> str:
        """What to say when a collective failed. All ranks in it notice within moments of each
        other and leave a message; who does not was elsewhere, or is no more."""
        cause = cause.splitlines()[0].split("] ", 1)[-1][
            :200
        ]  # gloo begins with a line of its code
        keys = [f"lost/{rank}" for rank in range(self.world)]
        try:
            self._store.set(keys[self.rank], label)
            with contextlib.suppress(RuntimeError):
                self._store.wait(keys, timedelta(seconds=min(GRACE, self.timeout)))
            missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            self._broken = self._report(label, missing, f"({cause})")
            # Whoever waits at a meeting need not wait out the time limit.
            message = _Message(label, error=self._broken)
            self._store.set(self._key(self.rank), message.encode())
        except RuntimeError:
            self._broken = f"the processes lost contact at {label!r}: {cause}"
        return self._broken

    def _report(self, label: str, missing: list[int], why: str) -> str:
        if not missing:
            return f"{label} failed on every rank {why}"
        where = []
        for rank in missing:
            if self._store.check([self._key(rank)]):
                message = _Message.decode(self._store.get(self._key(rank)))
                failed = f" and failed there ({message.error})" if message.error is not None else ""
                where.append(f"rank {rank} was at {message.label!r}{failed}")
            elif self._store.check([f"lost/{rank}"]):
                there = self._store.get(f"lost/{rank}").decode()
                where.append(f"rank {rank} was lost at {there!r}")
        instead = f"; {', '.join(where)}" if where else ""
        return (
            f"{_ranks(missing)} of {self.world} did not arrive at {label!r} {why}{instead}. Look "
            "at the first error in the output of that rank: it was killed, ran out of memory, or "
            "ran a different part of the script. A rank that is only slow needs a larger "
            "NATURAL_LANGEVIN_TIMEOUT (seconds)"
        )


def _of_communication(error: BaseException) -> bool:
    """Gloo's errors have no class of their own; they name its source files."""
    if isinstance(error, GroupError) or not isinstance(error, RuntimeError):
        return False
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def _check(messages: Sequence[_Message]) -> None:
    """Failures first, then ranks that met under different names: the same error on all ranks."""
    failed = [(rank, message) for rank, message in enumerate(messages) if message.error is not None]
    if failed:
        told = "; ".join(f"rank {rank} failed at {w.label!r}: {w.error}" for rank, w in failed)
        raise GroupError(bounded(told))
    labels: dict[str, list[int]] = {}
    for rank, message in enumerate(messages):
        labels.setdefault(message.label, []).append(rank)
    if len(labels) > 1:
        where = ", ".join(f"{_ranks(ranks)} at {label!r}" for label, ranks in labels.items())
        raise GroupError(
            f"the ranks are at different places of the run: {where}. Start every rank with the "
            "same script and the same arguments"
        )


def error_text(error: BaseException | None) -> str:
    """An error as one rank tells it to the others, of bounded length; "" where there is none."""
    if error is None:
        return ""
    name = type(error).__name__
    return bounded(f"{name}: {error}", 1000) if str(error) else name


def differences(label: str, everybody: Mapping[int, Mapping[str, Any]]) -> str:
    """What ranks do not agree on, and who has which value; at most eight settings."""
    found = []
    for name in differing(*everybody.values())[:8]:
        holders: dict[str, list[int]] = {}
        for rank, settings in everybody.items():
            holders.setdefault(str(settings.get(name, "missing")), []).append(rank)
        values = ", ".join(f"{value:.80} on {_ranks(r)}" for value, r in holders.items())
        found.append(f"{name} is {values}")
    return f"the ranks do not agree on {label}: {'; '.join(found)}"


def _ranks(ranks: Sequence[int]) -> str:
    """rank 3, ranks 0 and 2, ranks 0 to 5."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
