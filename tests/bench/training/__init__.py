"""What the training benchmarks share: modes, rounds, budgets, reports."""
