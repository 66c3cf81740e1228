"""The paper's experiment: presets and methods -> stages -> results.json."""
