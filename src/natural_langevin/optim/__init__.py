"""A ``torch.optim.Optimizer`` for your own training loop: the diff from SGD is two lines.

Imports likelihoods, priors, statistics, preconditioners, dynamics, execution, posterior, problem,
run and distributed; integrations and experiments import it.

-optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
+optimizer = NaturalLangevin(model, likelihoods.Categorical(), num_data=len(data), lr=1e-3)
+collector = optimizer.collector(burn_in=500, thin=100)
 for x, y in loader:
     optimizer.zero_grad()
     F.cross_entropy(model(x), y).backward()
     optimizer.step()
"""

from natural_langevin.optim.collector import Collector
from natural_langevin.optim.fisher import without_dropout
from natural_langevin.optim.optimizer import NaturalLangevin

__all__ = ["Collector", "NaturalLangevin", "without_dropout"]
