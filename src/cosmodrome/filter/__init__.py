"""Which messages a group wants. Pure: expressions in, decisions out."""
