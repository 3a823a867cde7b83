"""What rules ask of the machine (``worker.enforcement.external``): programs in the box, and configured models.

Your own process calls ``provide()`` once; workers, ``turns validate`` and ``turns replay-policy`` do it by themselves.
"""

from worker.external.machine import Machine, provide

__all__ = ["Machine", "provide"]
