"""Held against Hamiltonian Monte Carlo: ResNet-20 on CIFAR-10, whose HMC predictions are known.

Imports everything below it; cli imports it. Needs torch, numpy and safetensors alone, so that
``python -m natural_langevin.experiments.fidelity`` runs wherever torch does.
"""
