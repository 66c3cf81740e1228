"""What a step costs on many processes: memory, bytes on the wire, time. Prints a table.

    python -m lab.scale_model

The formulas and the table are those of lab/notes/scale.md. ``lab/scale.py`` checks them on real
processes: bytes exactly, times as the sum of their parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

#: Tensors of the size of the parameters: in the metric's state, and in what is exchanged per step.
METRICS = {
    "Euclidean": (0, 1),
    "RMSProp": (1, 1),
    "DiagonalFisher": (1, 2),
    "QuasiDiagonalFisher": (2, 3),
}
#: Forward and backward pass, and the two products of the statistics: multiply-adds count twice.
FLOPS = {"Euclidean": 6, "RMSProp": 6, "DiagonalFisher": 8, "QuasiDiagonalFisher": 10}


@dataclass(frozen=True)
class Network:
    """``without_row``: parameters that share no unit with a bias (such as biases themselves)."""

    parameters: float
    positions: float = 1  # tokens of a sample: what one parameter is used for per sample
    without_row: float = 0


@dataclass(frozen=True)
class Machine:
    """A GPU and what connects it; effective figures, not those of a data sheet."""

    flops: float
    memory: float  # bytes
    memory_bandwidth: float  # bytes per second
    node: int  # GPUs that the fast links connect
    inside: float  # bytes per second and GPU in each direction, within a node
    between: float  # ... between nodes
    latency: float = 20e-6  # seconds of a hop


@dataclass(frozen=True)
class Run:
    chains: int  # in all
    groups: int  # of processes with chains of their own
    data: int  # processes that share a minibatch
    batch: int  # samples per chain and step
    metric: str = "QuasiDiagonalFisher"
    item: int = 4  # bytes of a number


@dataclass(frozen=True)
class Cost:
    """Of one process: bytes of memory, bytes sent per step, seconds of a step's parts."""

    state: float
    working: float
    sent: float
    compute: float
    update: float
    exchange: float

    @property
    def step(self) -> float:
        """Nothing overlaps: an upper bound."""
        return self.compute + self.update + self.exchange


def exchanged(network: Network, metric: str, chains: float, item: int = 4) -> float:
    """Bytes of the flat buffer: gradient, second moments, bias rows, and a loss per chain."""
    count = METRICS[metric][1] * network.parameters
    if metric == "QuasiDiagonalFisher":
        count -= network.without_row
    return item * chains * (count + 1)


def sent_by_ring(buffer: float, processes: int) -> float:
    """Every process sends a part n - 1 times, for the sums and again for handing them out."""
    return 2 * buffer * (processes - 1) / processes


def cost(network: Network, run: Run, machine: Machine) -> Cost:
    here = -(-run.chains // run.groups)
    kept, _ = METRICS[run.metric]
    one = run.item * network.parameters * here
    buffer = exchanged(network, run.metric, here, run.item)
    sent = sent_by_ring(buffer, run.data)
    work = FLOPS[run.metric] * network.parameters * network.positions * run.batch * here
    wire = machine.inside if run.data <= machine.node else machine.between
    hops = 2 * (run.data - 1) * machine.latency
    copies = 2 if run.data > 1 else 0  # what is sent, and what comes back
    return Cost(
        state=(2 + kept) * one,
        working=buffer * (1 + copies) + 3 * one,  # and drift, noise, new parameters
        sent=sent,
        compute=work / run.data / machine.flops,
        update=(2 * (2 + kept) * one + 2 * buffer) / machine.memory_bandwidth,
        exchange=sent / wire + (hops if run.data > 1 else 0.0),
    )


#: A transformer of 10^9 parameters that reads 2,048 tokens per sample, and a node of eight GPUs of
#: 80 GB: 400 of 989 dense bf16 TFLOP/s, 3.0 of 3.35 TB/s, 350 of 450 GB/s NVLink, 40 of 50 GB/s of
#: the network.
BILLION = Network(parameters=1e9, positions=2048)
GPUS = Machine(flops=4e14, memory=80e9, memory_bandwidth=3.0e12, node=8, inside=350e9, between=40e9)
#: Tokens per chain and step: half a million.
BATCH = 256


def layouts(processes: int) -> Iterator[tuple[int, int]]:
    """Groups of chains x processes that share a minibatch."""
    data = 1
    while data <= processes:
        yield processes // data, data
        data *= 8


def table() -> str:
    """A chain per group: as many chains as groups."""
    lines = [
        "| GPUs | chains × data | GB per GPU | GB sent per step | compute s | exchange s "
        "| step s | updates of all chains per hour | limit |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for processes in (8, 64, 512):
        for groups, data in layouts(processes):
            found = cost(BILLION, Run(groups, groups, data, BATCH), GPUS)
            needed = found.state + found.working
            parts = {"compute": found.compute, "exchange": found.exchange, "update": found.update}
            limit = max(parts, key=lambda name: parts[name])
            limit = limit if needed < GPUS.memory else f"memory, then {limit}"
            lines.append(
                f"| {processes} | {groups} × {data} | {needed / 1e9:.0f} | {found.sent / 1e9:.1f} "
                f"| {found.compute:.3f} | {found.exchange:.3f} | {found.step:.3f} "
                f"| {3600 / found.step * groups:,.0f} | {limit} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
