"""Whether whole steps in Triton are used: they must support the whole run, and agree with the
reference.

The proof is two steps in one launch against two of the reference's: a compiler and a driver that we
have not seen stand between the kernel and its source. What has agreed once need not
again (``proofs``).
"""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
from torch.utils import _pytree as pytree

from natural_langevin._internal import gpu_build
from natural_langevin._internal.gpu_kernels import plain
from natural_langevin._internal.messages import first_line
from natural_langevin.data.streams import InMemory, Stream
from natural_langevin.dynamics.base import CHAINWISE, State
from natural_langevin.dynamics.frame import LangevinDynamics
from natural_langevin.dynamics.rates import RatesTable
from natural_langevin.execution.agreement import Proofs, disagreement, same_losses
from natural_langevin.execution.kernels.native.settings import UnsupportedError

log = logging.getLogger("natural_langevin")

#: Kinds of devices that the kernel runs on; in Triton's interpreter also "cpu".
DEVICES = ("cuda",)
#: Steps of the proof.
PROOF = 2
#: Seconds that the kernel must save: about as many as building it takes. Whether it is in Triton's
#: cache does not count, or the same run would be rounded otherwise the second time.
LEAST_GAIN = 5.0
#: What a step saves: launches, and for every chain (seen on an H200: 64 us to 10 for one chain of
#: 13-50-1, 0.30 to 0.06 a chain for 4,096).
SAVED_BY_STEP, SAVED_BY_CHAIN = 5e-5, 2.5e-7
PROOFS = Proofs()


def plan_whole_steps(
    dynamics: LangevinDynamics, state: State, stream: Stream, rates: RatesTable, num_data: float
) -> Any:
    """The executor for this run, or why there is none: then the general way is as right, and
    slower."""
    device = state.step.device
    if device.type not in DEVICES or "mlp" not in dynamics.kernels:
        return "it does not support this device, dynamics, metric or prior"
    if type(dynamics) is not LangevinDynamics or not isinstance(stream, InMemory):
        return "it does not support this dynamics or stream"
    if len(rates) * (SAVED_BY_STEP + SAVED_BY_CHAIN * state.chains) < LEAST_GAIN:
        return "building the kernel would take longer than it saves"
    try:
        gpu_build.wait(device)
        from natural_langevin.execution.kernels.whole_steps.executor import WholeSteps

        found = WholeSteps(dynamics, state, stream, rates, num_data)
        wrong = "" if PROOFS.known(dynamics, stream) else disagrees(found, state)
        if not wrong:
            PROOFS.add(dynamics, stream)
            return found
        reason = f"they disagree on {wrong}"
    except UnsupportedError as unknown:
        return str(unknown)
    except Exception as error:  # no Triton, a driver it cannot work with, or too little memory
        reason = first_line(error)
    log.warning(
        "no whole steps in Triton (%s): using kernels for single layers and plain operations",
        reason,
    )
    return reason


def disagrees(found: Any, state: State) -> str:
    """Which parts of the state are not the reference's after the first steps, in words."""
    dynamics, stream, rates = found.dynamics, found.stream, found.rates
    start = int(state.step)
    count = min(PROOF, rates.start + len(rates) - start)
    if count < 1:
        raise UnsupportedError("a run without steps")
    own, expected = copy.deepcopy(state), state
    after = found.run(own, start, count)
    dynamics.prepare(state.params, stream.example()[0])
    number = rates.values.new_tensor(float(found.num_data))
    with plain():
        for step in range(start, start + count):
            expected, info = dynamics.step(
                expected, stream.batch(step), rates.row(step), number, chain_axis=True
            )
    if not torch.equal(own.diverged, expected.diverged):
        return "which chains go on"
    if not same_losses(after.loss, info.loss):
        return "the loss"
    return disagreement(*(_leaves(s) for s in (own, expected, state)))


def _leaves(state: State) -> dict[str, Any]:
    """All that a step moves, by name."""
    found = {}
    for name in CHAINWISE:
        leaves, _ = pytree.tree_flatten_with_path(getattr(state, name))
        found.update({f"{name}{pytree.keystr(path)}": leaf for path, leaf in leaves})
    return found
