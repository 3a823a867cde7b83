"""Plain commands as agents: started by a template, complete only where their declared rule says so."""
