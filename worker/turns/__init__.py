"""The engine: turns are claimed, run, judged and finished here, and nothing else decides what becomes of a turn.

The main path: ``tasks`` (what Celery calls) -> ``service`` (one method per link of the chain) -> ``agent_run``,
``judges`` (the work itself) -> ``after_run``, ``after_judging`` (pure: the move that follows from what happened) ->
``publisher`` (what was accepted) -> ``ledger`` (the Lua commands). Beside it: ``work`` is the port of kinds of work,
``lease`` keeps what is held, ``writer`` streams events, ``reaper`` handles turns without a holder.
"""
