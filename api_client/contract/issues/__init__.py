"""Problems: of an answer, and of a turn that ended without one."""
