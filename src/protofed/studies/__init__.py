"""Several runs: comparisons, sweeps, the papers' tables, theory."""
