"""Estimate what a recipe costs, and recommend one for a time budget."""
