"""What ``turns doctor`` looks at. Each check yields findings; one that is not fine says what to do."""
