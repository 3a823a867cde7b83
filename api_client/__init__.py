"""The web side of helix-turns: submit turns, follow them, and relay them to Open WebUI."""

__version__ = "0.1.0"
