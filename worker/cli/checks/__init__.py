"""The checks of ``turns doctor``. Each check yields findings; one that is not fine says what to do."""
