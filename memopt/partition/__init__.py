"""Partition: which tensor lies where on a cluster, and what moving it costs."""
