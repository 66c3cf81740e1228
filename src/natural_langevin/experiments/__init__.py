"""The paper's experiment: presets and methods -> stages -> results.json.

Imports everything below it; tabular and up import it.
"""
