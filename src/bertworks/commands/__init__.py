"""What a person starts: each module is one verb, as a plain function."""
