"""Samplers side by side: dynamics and metrics on problems whose posterior is known by NUTS."""
