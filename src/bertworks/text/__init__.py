"""Raw sources in, a stream of clean Documents out."""
