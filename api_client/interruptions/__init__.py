"""Kinds of questions that suspend a turn: how they are shown and answered.

``worker/turns/interruptions`` suspends and resumes the turns. Installed packages add kinds by entry
points.
"""
