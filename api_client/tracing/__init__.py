"""Traces of turns."""
