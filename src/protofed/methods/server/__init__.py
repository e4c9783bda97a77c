"""Server-side algorithms on whole models: clusters of models, and models of several rounds."""
