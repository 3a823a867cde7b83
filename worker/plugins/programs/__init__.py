"""Shared parts of agents that are installed programs: declaration, HOME and access to the model."""
