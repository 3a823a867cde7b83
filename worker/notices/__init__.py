"""Sending notices, in the second loop of a worker process. One process of an installation sends at a time.

It may die at any line: what it put is in the outbox, and what a target took stays there until the store knows it. So a
target may get a notice twice, with the same id, and none is lost.
"""
