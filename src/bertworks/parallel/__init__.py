"""Worker processes, Ray clusters and what this machine offers."""
