"""Kinds of questions that suspend a turn: how they are shown and answered."""
