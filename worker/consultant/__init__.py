"""The consultant: sessions, their folders, and what its agents write there (ADR-034)."""
