"""Parses and validates request bodies."""
