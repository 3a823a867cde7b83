"""Agents that use the Agent Client Protocol (ACP): one runner, and a declaration for each agent."""
