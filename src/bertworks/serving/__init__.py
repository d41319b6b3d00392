"""Models behind an HTTP port: answers, requests gathered into batches, the app, bundles, and the page."""
