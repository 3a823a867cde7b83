"""What is wrong: with an answer, and with a turn that ended without one."""
