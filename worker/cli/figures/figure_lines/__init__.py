"""Sentences of ``turns stats summary`` about capabilities, one module for each with a ``describe_figures``."""
