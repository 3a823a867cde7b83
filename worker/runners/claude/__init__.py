"""The Claude command line (CLI) as an agent."""
