"""What is tried: one short file per scenario, and the machinery that runs them."""
