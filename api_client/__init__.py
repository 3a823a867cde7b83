"""The client of an installation and everything it stores; ``web`` is the relay, which no other package imports."""

__version__ = "0.1.0"
