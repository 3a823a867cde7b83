"""The claims of an answer about its work, and the journal of its run, with which they are compared. Pure."""
