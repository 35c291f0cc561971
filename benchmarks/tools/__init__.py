"""Who solves it: one file per tool and table, each with `cases()`, what can be timed there."""
