"""Runners, which run agents behind one interface (``base``)."""
