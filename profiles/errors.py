"""The errors of costs, clusters, models and the files that hold them."""


class ProfileError(ValueError):
    """A cost, a cluster, a model or a file of one is not what it must be."""
