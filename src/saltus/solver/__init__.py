"""`solve` and what it is given."""
