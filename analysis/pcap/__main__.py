"""`python -m analysis pcap FILE...`"""

from __future__ import annotations

from analysis.pcap.command import main
from terminal import program

if __name__ == "__main__":
    program.run(main)
