"""Kinds of interruptions: how their questions are shown and answered.

``worker/turns/interruptions`` suspends and resumes the turns. Installed packages add kinds by entry points
(docs/inbox.md).
"""
