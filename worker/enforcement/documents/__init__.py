"""The parts of an answer (step marker, ADR, header, sections), and how to put them together."""
