"""Compare model families on equal terms."""
