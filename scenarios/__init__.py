"""What is tried: one short file per scenario, and the machinery that runs them."""

import terminal as terminal  # first: Ctrl-C may come while the rest is imported
