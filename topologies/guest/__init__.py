"""A guest kernel: Linux with netem and Open vSwitch as an ordinary program, in virtual time."""
