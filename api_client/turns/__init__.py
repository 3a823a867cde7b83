"""Operations on single turns: submit, read, follow, cancel and decide."""
