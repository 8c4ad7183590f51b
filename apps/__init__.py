"""What runs on the hosts: server, client, controller, capture, probe, and the sources of tokens."""

import terminal as terminal  # first: Ctrl-C may come while the rest is imported
