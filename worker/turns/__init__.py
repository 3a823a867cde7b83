"""The engine: claims turns, runs agents, validates answers and finishes turns.

The main path: ``service`` (one method per task of a chain) -> ``agent_run`` (run) and ``validation_pool`` (validate) ->
``after_run`` and ``after_validation`` (pure transitions) -> ``publisher`` (accepted answers) -> ``ledger`` (Lua
commands).
Beside the path, ``work`` is the port for kinds of work, ``leases`` holds turns and finds lost ones, and
``event_writer`` streams events.
"""
