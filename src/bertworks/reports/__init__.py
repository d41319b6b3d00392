"""Records and scores in, self-contained HTML pages and SVG figures out."""
