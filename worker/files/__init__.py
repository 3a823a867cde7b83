"""Manage the folders of sessions: locks, files of agents, snapshots (ADR-034)."""
