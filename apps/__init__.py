"""What runs on the hosts: server, client, controller, capture, probe, and the sources of tokens."""
