"""Runners, which run agents through one interface (``base``)."""
