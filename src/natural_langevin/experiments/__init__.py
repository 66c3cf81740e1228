"""The paper's experiment: presets and methods -> stages -> results.json.

Imports everything below it; sklearn and up import it.
"""
