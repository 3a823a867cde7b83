"""The folders of sessions: their holders, the files of agents, and recordings of runs (ADR-034)."""
