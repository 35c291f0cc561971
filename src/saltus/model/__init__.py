"""A system as functions on leaves: traced, checked, its algebraic states solved for."""
