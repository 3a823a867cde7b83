"""Notifications to outside systems: their outbox and its monitor."""
