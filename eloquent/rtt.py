"""Round-trip time and probe timeout, as in RFC 9002, sections 5 and 6.2.1; queueing delay."""

from __future__ import annotations

#: RTT assumed before the first sample. RFC 9002 says 333 ms; a prompt that is lost would then be
#: resent after a full second. Chat clients talk to servers below 100 ms, and one early copy of a
#: small prompt is cheap, so we start from 100 ms (PTO 300 ms).
INITIAL_RTT = 0.1
#: Timer granularity, kGranularity in RFC 9002.
GRANULARITY = 0.001
#: A queueing delay (s) that no jitter of a radio explains. A silence after it is taken for a queue
#: that has grown (bufferbloat), a silence after prompt answers for an outage.
LONG_QUEUE = 0.1


class RttEstimator:
    """Smoothed RTT and its variation, in seconds."""

    __slots__ = ("_outage", "latest", "minimum", "samples", "smoothed", "variation")

    def __init__(self) -> None:
        self.samples = 0
        self.latest = 0.0
        self.minimum = 0.0
        self.smoothed = INITIAL_RTT
        self.variation = INITIAL_RTT / 2
        self._outage = 0.0  # the silence (s) since the last sample, if there was one

    @property
    def long_queue(self) -> bool:
        """Datagrams wait in a queue, longer than any jitter of a radio."""
        return self.samples > 0 and self.smoothed - self.minimum > LONG_QUEUE

    def broken_off(self, silence: float) -> None:
        """The path was silent for so long (s), and may be another one now (RFC 9002, 5.2).

        The next sample counts as the first, unless it is long enough to explain the silence: then
        nothing was broken off, the delay has grown. Where there was a long queue before, it may
        still be there, so the least RTT stays.
        """
        self._outage = silence

    def add(self, sample: float, ack_delay: float = 0.0) -> None:
        """Take one sample; ``ack_delay`` is the time for which the peer held its answer."""
        self.latest = sample
        if self.samples == 0 or sample < self._outage / 2:
            known = self.minimum if self.long_queue else sample
            self.minimum, self.smoothed = min(known, sample), sample
            self.variation = min(sample / 2, self.variation) if self.samples else sample / 2
        else:
            self.minimum = min(self.minimum, sample)
            # RFC 9002, section 5.3: never let a reported delay push the sample below the minimum.
            adjusted = sample - ack_delay if sample >= self.minimum + ack_delay else sample
            self.variation += (abs(self.smoothed - adjusted) - self.variation) / 4
            self.smoothed += (adjusted - self.smoothed) / 8
        self._outage = 0.0
        self.samples += 1

    @property
    def probe_timeout(self) -> float:
        """PTO without backoff. Our receivers answer at once, so max_ack_delay is 0."""
        return self.smoothed + max(4 * self.variation, GRANULARITY)

    def queueing(self, silence: float) -> float:
        """Seconds that datagrams seem to wait in queues, there and back; 0 before any sample.

        ``silence`` is for how long (s) datagrams have been sent without an answer.
        """
        if not self.samples:
            return 0.0
        longest = self.smoothed
        if self.long_queue:
            longest = max(longest, self.latest, silence)
        return longest - self.minimum
