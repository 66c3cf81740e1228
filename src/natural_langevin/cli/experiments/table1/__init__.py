"""The paper's Table 1: its protocol, the stages that fill it, and results.json.

Imports everything below experiments; cli imports it.
"""
