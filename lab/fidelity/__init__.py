"""Held against Hamiltonian Monte Carlo: ResNet-20 on CIFAR-10, whose HMC predictions are known.

Needs torch, numpy and safetensors alone, so that
``python -m lab.fidelity`` runs wherever torch does.
"""
