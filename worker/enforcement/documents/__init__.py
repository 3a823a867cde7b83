"""The parts of an answer: step marker, ADR, header, sections; and putting parts together."""
