"""Predicting from a posterior larger than the memory it may use: measured in its own process."""

from __future__ import annotations

import json

import warm

#: Writes a posterior of 192 MiB draw by draw, loads it mapped and predicts; then it reads all.
PROGRAM = """
import json, sys, torch
from pathlib import Path
from torch import nn
from natural_langevin import Posterior, likelihoods
from natural_langevin.posterior import networks
from natural_langevin.posterior.stores import InFolder

torch.set_num_threads(1)
torch.manual_seed(0)
folder = Path(sys.argv[1])
model = nn.Linear(1024, 512)  # 2 MiB
chains, draws = 2, 48

def peak(reset=False):
    if reset:
        use_code()
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))

params = {n: p.detach().expand(chains, *p.shape) for n, p in model.named_parameters()}
small = {n: p[:, None] for n, p in params.items()}

def use_code():  # pages of the libraries, which the system may have taken back, are not measured
    Posterior(model=model, likelihood=likelihoods.Gaussian(sigma=1.0), samples=small, mean=params,
              last=params, diverged=torch.full((chains,), -1)).save(folder / "small")
    Posterior.load(folder / "small", model, memory_map=True).predict(torch.ones(3, 1024))

before = peak(reset=True)
store = InFolder(folder, networks.specs(params, draws, None), run="0" * 64)
store.begin()
for draw in range(draws):
    store.put(draw, {n: p + 0.01 * draw for n, p in params.items()})
Posterior(model=model, likelihood=likelihoods.Gaussian(sigma=1.0), samples=store.finished(),
          mean=params, last=params, diverged=torch.full((chains,), -1)).save(folder)
written = peak() - before
x, read = torch.ones(3, 1024), {}
exact = model(x).detach() + 0.01 * (draws - 1) / 2 * 1025
for mapped in (True, True, True, False):  # the least: pages that the allocator returned come again
    before = peak(reset=True)
    posterior = Posterior.load(folder, model, memory_map=mapped)
    mean = posterior.predict(x, sample_batch=2).mean
    read[mapped] = min(peak() - before, read.get(mapped, 1 << 40))
    if mapped:
        samples = sum(s.nbytes for s in posterior.samples.values())
        error = float((mean - exact).abs().max() / exact.abs().max())
    del posterior
print(json.dumps({"samples": samples, "written": 1024 * written, "read": 1024 * read[True],
                  "read whole": 1024 * read[False], "error": error}))
"""


def test_a_posterior_is_written_saved_and_predicted_from_in_a_fraction_of_its_size(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    streamed = json.loads(warm.run([script, tmp_path / "posterior"]))
    assert streamed["samples"] > 192e6
    assert streamed["error"] < 1e-5
    # Two networks are 4 MiB; they are mapped, copied and evaluated while the last two still exist.
    assert streamed["written"] < streamed["samples"] / 8
    assert streamed["read"] < streamed["samples"] / 8
    # The measure sees what is read into memory.
    assert streamed["read whole"] > streamed["samples"]
