"""The load of a chaos run: what is planned, who sends it, who decides, and what agents answer."""
