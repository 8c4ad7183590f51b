"""Is this machine fit for the testbed, and what can it emulate? `python -m topologies.doctor`."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - who asks the doctor may well have an old one
    sys.exit("problem  python: the testbed needs Python 3.11 or newer. Remedy: take Debian 12")
