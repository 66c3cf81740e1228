"""Debian's ``dieharder`` on the bits of ``natural_langevin.random``, in the orders a run sees them.

    python -m lab.dieharder --out results/dieharder.txt        (about half an hour)
    python -m lab.dieharder --produce step --seed 4 | dieharder -g 200 -d 4 -n 0

A good generator gives p-values uniform in (0, 1): dieharder calls one below 0.005 or above 0.995
WEAK, as one in a hundred of a perfect generator's are, and one below 1e-6 or above 1 - 1e-6 FAILED.
Every test reads its own stream (the seed is the test's number), so that the p-values of one order
are independent of each other.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from natural_langevin import random

CHUNK = 1 << 18
#: Words of one step of the paper's network: 478,410 parameters, every tensor from a new block.
NETWORK = 478_432

ORDERS = {
    "element": "successive words of one key (chain 0, step 0), as a huge tensor sees them",
    "step": "the first word of chain 0 at steps 0, 1, 2, ...: what one weight sees over time",
    "chain": "the first word at step 0 of chains 0, 1, 2, ...: neighbouring chains",
    "run": f"{NETWORK:,} words of step 0, of step 1, ...: all that the paper's network consumes",
}

#: (test, n-tuple). Left out: what dieharder calls suspect (5, 6, 7) or unusable (14), the slowest
#: (17, 204), and most n-tuples of the tests that take one.
TESTS = [
    *((test, 0) for test in (0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 15, 16, 100, 101, 102)),
    *((200, 2), (200, 4), (201, 2), (201, 3), (202, 5), (203, 0)),
    *((test, 0) for test in (205, 206, 207, 208, 209)),
]


def words(order: str, seed: int) -> Iterator[Tensor]:
    """Endless chunks of int32 words."""
    first = random.origin(seed, random.NOISE, torch.zeros(1, dtype=torch.int64))
    count = 0
    while True:
        if order == "element":  # a key has 2^32 words: the next step's key goes on
            step, start = divmod(count * CHUNK, 1 << 32)
            if start >= 1 << 31:  # the same index, as the signed integer that torch has
                start -= 1 << 32
            yield random.bits(random.stream(first, step), CHUNK, start=start)
        elif order == "run":
            yield random.bits(random.stream(first, count), NETWORK)
        else:
            address = torch.arange(count * CHUNK, (count + 1) * CHUNK)
            if order == "step":
                key = random.stream(first.expand(CHUNK), address)
            else:
                key = random.stream(random.origin(seed, random.NOISE, address), 0)
            yield random.bits(key, 1)
        count += 1


def produce(order: str, seed: int) -> None:
    """Raw little-endian words on standard output, until the reader has had enough."""
    try:
        for chunk in words(order, seed):
            sys.stdout.buffer.write(chunk.flatten().numpy().astype("<i4", copy=False).tobytes())
    except BrokenPipeError:
        sys.stderr.close()  # the interpreter would complain about the same pipe once more


def fingerprint(order: str) -> str:
    """Of the first words of seed 0: says whether a summary is about the bits of today's code."""
    return hashlib.sha256(next(words(order, 0)).numpy().astype("<i4").tobytes()).hexdigest()[:16]


def judge(order: str, test: int, ntuple: int) -> list[str]:
    """The result lines of one test."""
    command = [sys.executable, __file__, "--produce", order, "--seed", str(test)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as producer:
        dieharder = ["dieharder", "-g", "200", "-d", str(test), "-n", str(ntuple)]
        done = subprocess.run(dieharder, stdin=producer.stdout, capture_output=True, text=True)
        assert producer.stdout is not None
        producer.stdout.close()
        producer.terminate()
    lines = [line for line in done.stdout.splitlines() if line.count("|") >= 5]
    if not lines:
        raise RuntimeError(f"{' '.join(dieharder)} gave no result: {done.stdout}{done.stderr}")
    return lines


def run(out: Path, orders: list[str]) -> None:
    version = subprocess.run(["dieharder", "-h"], capture_output=True, text=True).stdout
    name = next((line.strip("# ") for line in version.splitlines() if "version" in line), "")
    verdicts: dict[str, dict[str, int]] = {}
    body = []
    for order in orders:
        counts = verdicts[order] = {"PASSED": 0, "WEAK": 0, "FAILED": 0}
        body += ["", f"order {order} ({fingerprint(order)}): {ORDERS[order]}", ""]
        started = time.monotonic()
        for test, ntuple in TESTS:
            for line in judge(order, test, ntuple):
                if "Assessment" in line:
                    continue
                print(f"{order:8}{line}", flush=True)
                body.append(line)
                counts[line.rsplit("|", 1)[1].strip()] += 1
        print(f"{order}: {time.monotonic() - started:.0f} s", flush=True)
    columns = "        test_name   |ntup| tsamples |psamples|  p-value |Assessment"
    summary = [
        f"{order:8} " + "  ".join(f"{n} {v}" for v, n in c.items()) for order, c in verdicts.items()
    ]
    head = [f"The bits of natural_langevin.random, judged by {name}", __doc__ or "", *summary]
    out.write_text("\n".join([*head, "", columns, *body]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/dieharder.txt"))
    parser.add_argument("--orders", nargs="*", default=list(ORDERS), choices=list(ORDERS))
    parser.add_argument("--produce", choices=list(ORDERS), help="write this order's words instead")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.produce:
        produce(arguments.produce, arguments.seed)
    else:
        run(arguments.out, arguments.orders)


if __name__ == "__main__":
    main()
