"""Beyond the paper: the best that T = 1 reaches on images with the paper's network, and what each
ingredient adds. ``python -m lab.beyond`` needs torch, numpy and
safetensors alone.
"""
