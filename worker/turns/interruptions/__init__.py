"""Kinds of interruptions: how a turn is suspended and resumed, and what the resumed run receives."""
