"""Phases, as a worker carries them out: folders, verification, and the moves after it (docs/WORKFLOW-SYSTEM.md)."""
