"""Commands about turns: submit, inspect, act and decide."""
