"""Reference models as lists of layers; the user's own through `resolve_model`. Each file here loads torch."""
