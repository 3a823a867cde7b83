"""What a turn may wait for, by kind: how its question is shown and answered.

How the turn goes on is in ``worker/turns/interruptions``. Installed packages add kinds by entry points (docs/inbox.md).
"""
