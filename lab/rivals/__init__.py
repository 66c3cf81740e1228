"""Other people's posteriors of networks beside ours, in the same seconds on the same machine.

``python -m lab.rivals``: what is compared is in ``problems``, how in ``methods`` and ``many``.
"""
