"""Agents as processes: sandbox, resource limits, model proxy, supervision."""
