"""Watching over flow versions."""
