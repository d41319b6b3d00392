"""The one loop: a module from batch to Loss in, trained weights, records and a report out."""
