"""Timing profiles: answers at the pace of a serving system, without that system.

``timing:NAME`` takes a profile of ``apps/data/timing/``, ``timing:FILE.toml`` one of one's own, and
``timing:NAME:key=value:key=value`` sets parameters anew. A profile names a shape (``shapes.py``)
and its values, and for each value its source or that it is an assumption.
"""

from __future__ import annotations

from apps.timing.profile import Profile, TimingError, names
from apps.timing.source import TimingSource, open_timing

__all__ = ["Profile", "TimingError", "TimingSource", "names", "open_timing"]
