"""An agent that plays a script, for demos, tests and load."""
