"""Leases: holding one, taking back those of dead workers, and whether this worker is alive."""
