"""Operations on one turn: submit, read, follow, cancel and decide."""
