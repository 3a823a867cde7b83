"""The chaos laboratory: kills, freezes and cuts an installation at random under load, and judges what came of it.

``python -m tests.chaos`` runs it (``make chaos``). It is no part of the product: nothing here is installed.
"""
