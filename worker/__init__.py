"""The worker side of helix-turns: run the agent, judge its answer, ask again, finish the turn once."""
