"""Policy replay: try a policy on the recorded answers of finished turns."""
