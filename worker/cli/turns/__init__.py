"""Commands about turns: submit, read, act on, decide."""
