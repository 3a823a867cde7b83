"""Checks of settings against what they name: one module for each kind of setting."""
