"""Adapters for Open WebUI."""
