"""All that rules ask of the machine: programs in the box, and configured models (``enforcement.validators.services``).

Your own process calls ``provide()`` once; workers, ``turns validate`` and ``turns replay-policy`` do it by themselves.
"""

from worker.external.machine import Machine, provide

__all__ = ["Machine", "provide"]
