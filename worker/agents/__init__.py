"""The agents of this installation: which runners there are, and what this worker can run."""
