"""Sentences of ``turns stats`` about capabilities, one module for each with a ``describe_figures``."""
