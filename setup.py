"""Packages and where they lie; everything else is in pyproject.toml.

`datasets/`, `tools/` and `recipes/` are folders, not packages: an installed top-level package
called `datasets` would overwrite Hugging Face's.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["memopt", "memopt.*", "facetrain", "facetrain.*"]),
        *find_packages("datasets", include=["facetrain_datasets", "facetrain_datasets.*"]),
        *find_packages("tools", include=["facetrain_tools", "facetrain_tools.*"]),
        "facetrain_recipes",
    ],
    package_dir={
        "memopt": "memopt",
        "facetrain": "facetrain",
        "facetrain_datasets": "datasets/facetrain_datasets",
        "facetrain_tools": "tools/facetrain_tools",
        "facetrain_recipes": "recipes",
    },
)
