"""One run on several processes, started by ``torchrun``."""
