"""Where datasets come from: the catalogue, and a reader for each published format."""
