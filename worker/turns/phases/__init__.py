"""A turn that carries out a phase: its folders, its verification, clearing up after it."""
