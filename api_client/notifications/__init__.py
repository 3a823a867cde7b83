"""Notifications: the outbox, and its place among the monitors and reporters of an installation."""
