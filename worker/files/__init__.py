"""The folders of sessions, who holds them, and what its agents write there (ADR-034)."""
