"""The commands as plain functions, one module or package each: a request in, events or a result out."""
