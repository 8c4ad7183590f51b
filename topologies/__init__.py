"""The network: private namespaces, Open vSwitch, links that keep to their profile, topologies."""
