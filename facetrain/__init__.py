"""Face recognition training at the scale of millions of identities."""
