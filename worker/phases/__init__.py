"""Phases on a worker: folders, verification, and the following transitions (docs/WORKFLOW-SYSTEM.md)."""
