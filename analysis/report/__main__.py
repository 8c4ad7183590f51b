"""`python -m analysis report RESULTS...`"""

import sys

from analysis.report.command import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
