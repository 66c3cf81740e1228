"""Tables of numbers and classes: our estimators beside those of others."""
