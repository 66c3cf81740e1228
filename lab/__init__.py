"""The laboratory: experiments and measurements with the library, run from a checkout.

``python -m lab.fidelity``, ``lab.shift``, ``lab.uci``, ``lab.beyond``, ... each say with ``--help``
what they take. All but ``lab.tables`` and the references by blackjax need torch, numpy and
safetensors alone. Nothing in the package imports it, and it is not in the wheel.

What all of them share: ``results`` (a study's rows in one JSON, kept as they are done), ``command``
(options, errors), ``jobs`` (processes), ``pages`` (tables and their places), ``gpu``.
"""
