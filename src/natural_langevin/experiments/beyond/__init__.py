"""Beyond the paper: the best that T = 1 reaches on images with the paper's network, and what each
ingredient adds. ``python -m natural_langevin.experiments.beyond`` needs torch, numpy and
safetensors alone.

Imports everything below experiments; cli imports it.
"""
