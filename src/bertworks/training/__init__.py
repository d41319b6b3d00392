"""Training: the loop, optimizer, schedules, checkpoints, devices, data parallelism and sharding."""
