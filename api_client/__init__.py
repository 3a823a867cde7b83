"""The client and the server side except the engine: what is stored and how, for programs, the relay and the worker.

``contract`` has the shared types; each other package has one subject. ``web`` is the relay, which no other package
imports.
"""

__version__ = "0.1.0"
