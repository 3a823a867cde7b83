"""The engine: claims turns, runs agents, validates answers and finishes turns.

``service`` (one method per task) -> ``agent_run`` and ``validation_pool`` -> ``transitions`` (pure) -> ``publisher`` ->
``ledger``.
"""
