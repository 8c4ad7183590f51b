"""Your own captures: what happened to each flow, read in bulk and told in tables."""
