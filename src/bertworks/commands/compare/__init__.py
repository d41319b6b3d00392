"""Compare model families under equal budgets."""
