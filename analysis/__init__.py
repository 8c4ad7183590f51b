"""What came out: captures to packets, packets to tokens, tokens to stalls, tables and plots."""

import terminal as terminal  # first: Ctrl-C may come while the rest is imported
