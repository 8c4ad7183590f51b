"""`python -m analysis pcap FILE...`"""

from __future__ import annotations

import sys

from analysis.pcap.command import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader of our output, head for one, has left
        sys.stderr.close()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
