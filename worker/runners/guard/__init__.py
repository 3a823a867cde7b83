"""Agents as processes: started, limited, boxed, watched, and ended with all they started."""
