"""The margins of a solution as functions of its parameters, with a fixed sequence of rows."""

from __future__ import annotations

import dataclasses

from ..base.host_programs import rarely
from ..base.leaves import Leaves
from ..solution.solution import Solution
from .error_growth import first_state, remade
from .margins import Margins, measure


@rarely
def margins_of(sol: Solution, p: Leaves) -> Margins:
    """The margins as a function of p, with a fixed start."""
    tape = sol.tape
    rows, ends = remade(sol, p, first_state(tape))
    (tau, *w), (end_tau, *end_w) = rows, ends
    end = tape.end._replace(tau=end_tau, w=tuple(end_w))
    new = dataclasses.replace(sol.spec.model.with_p(tape, p), tau=tau, w=tuple(w), end=end)
    return measure(dataclasses.replace(sol, tape=new)).margins
