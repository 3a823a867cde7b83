"""The runner for agents that speak the Agent Client Protocol (ACP), with a declaration for each agent."""
