"""Processes that work together: the torchrun process group, worker pools, Ray clusters."""
