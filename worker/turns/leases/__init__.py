"""Leases: renew held leases, reclaim the leases of dead workers, and report worker health."""
