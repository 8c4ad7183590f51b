"""The network: private namespaces, Open vSwitch, links that keep to their profile, topologies."""

import terminal as terminal  # first: Ctrl-C may come while the rest is imported
