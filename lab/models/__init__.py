"""HMC's residual network, with the rule that Fisher metrics need for its norm."""

from lab.models import filter_response_rule as filter_response_rule
from lab.models.residual import FilterResponseNorm, resnet_frn

__all__ = ["FilterResponseNorm", "resnet_frn"]
