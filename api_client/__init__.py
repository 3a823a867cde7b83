"""The client, and the server side without the engine: what is stored and how, asked by programs, relay and worker.

``contract`` is what all of them speak; the other packages are one durable noun each. ``web`` is the relay; none of
them imports it.
"""

__version__ = "0.1.0"
