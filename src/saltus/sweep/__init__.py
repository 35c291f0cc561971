"""Computes derivatives: rows as smooth maps, and tangent and adjoint sweeps over them."""
