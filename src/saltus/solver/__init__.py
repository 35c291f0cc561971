"""`solve` and its arguments."""
