"""Values in, HTML out: what notebooks and reports draw alike. All text is escaped."""
