"""Celery messages and their announcement."""
