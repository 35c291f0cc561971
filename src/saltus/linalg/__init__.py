"""Vectors, factorisations, sparsity and Newton's method, all differentiable."""
