"""The `facetrain` command."""
