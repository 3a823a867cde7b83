"""Pages by which operators keep an installation going: pauses, budgets, calls for help."""
