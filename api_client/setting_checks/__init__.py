"""Checks whether what settings name exists, one module for each kind of setting."""
