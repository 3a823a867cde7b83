"""The rule ``claims``, which compares an answer's statements about the agent's work with the log of tool calls."""
