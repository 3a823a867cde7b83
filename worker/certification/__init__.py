"""The certification kit: it drives a runner's real program through situations, and judges its verdicts.

Only ``turns certify-runner`` imports it (docs/agents.md).
"""
