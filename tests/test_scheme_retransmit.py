"""The scheme `retransmit` against the RFCs of TCP: each timeline is computed by hand.

One way takes 20 ms unless said otherwise, so SRTT is 40 ms. The first sample makes RTTVAR 20 ms and
each further one takes a quarter off, so the RTO is 40 + max(4 RTTVAR, 200) = 240 ms throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from network import Network  # type: ignore[import-not-found]

from eloquent.wire import Data, decode

WAY = 0.02
RTT, RTO = 2 * WAY, 0.24
#: A datagram as (seconds since the first token, first index, index after its last token).
Sent = tuple[float, int, int]
Lost = Callable[[Sent, int], bool]
Spacing = float | Callable[[int], float]


def run(
    tokens: int | list[bytes],
    spacing: Spacing,
    lost: Lost,
    *,
    way: float = WAY,
    think: float = 0.1,
    late: dict[int, float] | None = None,
) -> list[Sent]:
    """What the server sent. ``lost`` is asked with each datagram and how often it was sent before.

    ``late`` has additional delays of first transmissions, by index.
    """
    zero = way + think
    sent: list[Sent] = []

    def fate(datagram: bytes, direction: str, now: float) -> list[tuple[bytes, float]]:
        message = decode(datagram)
        if direction == "up" or not isinstance(message, Data):
            return [(datagram, way)]
        first = message.first
        seen = (now - zero, first, first + len(message.tokens))
        before = sum(start <= first < stop for _, start, stop in sent)
        sent.append(seen)
        extra = 0.0 if before else (late or {}).get(first, 0.0)
        return [] if lost(seen, before) else [(datagram, way + extra)]

    words = [b"%d" % n for n in range(tokens)] if isinstance(tokens, int) else tokens
    network = Network(words, fate, scheme="retransmit", spacing=spacing, think=think).run()
    assert network.answer == words
    assert network.ended == ["complete"]
    return sent


def times(sent: Iterable[Sent], index: int) -> list[float]:
    """When ``index`` was sent, each time."""
    return [at for at, first, stop in sent if first <= index < stop]


def once(*indices: int) -> Lost:
    """The first transmissions that begin with these are lost."""
    return lambda seen, before: before == 0 and seen[1] in indices


def at_once(of: int) -> Callable[[int], float]:
    """Spacing: groups of so many tokens at one instant, 25 ms from group to group."""
    return lambda n: 0.025 if (n + 1) % of == 0 else 0.0


# -- RACK (RFC 8985, section 6.2) ----------------------------------------------------------------


def test_a_loss_is_resent_a_quarter_of_the_rtt_after_an_rtt() -> None:
    """Token 6, sent 6 ms later, is acknowledged 46 ms after token 5 left: 4 ms are left to wait."""
    sent = run(8, 0.006, once(5))
    first, again = times(sent, 5)
    assert first == pytest.approx(5 * 0.006)
    assert again - first == pytest.approx(RTT + RTT / 4, abs=1e-6)


def test_a_loss_is_resent_with_the_ack_if_the_quarter_has_passed() -> None:
    first, again = times(run(20, 0.045, once(5)), 5)
    assert again - first == pytest.approx(0.045 + RTT, abs=1e-6)


def test_of_two_segments_sent_together_the_first_one_is_missed_as_well() -> None:
    """RACK_sent_after: at equal times the sequence number decides."""
    words = [b"a" * 1000, b"b" * 1000]
    first, again = times(run(words, 0.0, once(0)), 0)
    assert first == pytest.approx(0.0)
    assert again == pytest.approx(RTT + RTT / 4, abs=1e-6)


@pytest.mark.parametrize(("later", "after"), [(2, 0.4 + 0.1), (3, 0.46)])
def test_three_later_segments_show_a_loss_at_once(later: int, after: float) -> None:
    """RTT 400 ms: a quarter is 100 ms. The ACKs come 420, 440 and 460 ms after the lost segment."""
    sent = run(6 + later, 0.02, once(5), way=0.2, think=1.0)
    first, again = times(sent, 5)
    assert again - first == pytest.approx(after, abs=1e-6)


def test_in_recovery_nothing_is_added_for_reordering() -> None:
    """Token 5's loss, seen 50 ms after it left, starts a recovery up to token 9, sent meanwhile.

    Token 8, lost too, left 30 ms after token 5; token 9 left 10 ms later, and its ACK shows it.
    """
    sent = run(12, 0.01, once(5, 8))
    assert times(sent, 5)[1] == pytest.approx(0.05 + 0.05, abs=1e-6)
    assert times(sent, 8)[1] == pytest.approx(0.09 + RTT, abs=1e-6)


def test_the_ack_of_a_segment_that_was_only_late_is_no_rtt() -> None:
    """Token 5 comes 35 ms late: resent 50 ms after it left, acknowledged 25 ms after that.

    Taken for an RTT, these 25 ms would make token 9, on its way for 35 ms by then, a loss.
    """
    sent = run(30, 0.01, lambda seen, before: False, late={5: 0.035})
    twice = [n for n in range(30) if len(times(sent, n)) > 1]
    assert twice == [5]
    assert times(sent, 5)[1] == pytest.approx(0.05 + 0.05, abs=1e-6)


def test_lost_segments_that_are_cut_anew_are_resent_once() -> None:
    """Two lost segments of ten tokens of 101 bytes: the first datagram now takes eleven."""
    words = [b"%03d" % n + b"." * 97 for n in range(21)]
    sent = run(words, at_once(10), once(0, 10))
    assert [len(times(sent, n)) for n in range(20)] == [2] * 20


# -- tail loss probe and RTO (RFC 8985, section 7; RFC 6298) -------------------------------------


def test_a_probe_with_the_last_segment_after_two_rtts_of_silence() -> None:
    """Its ACK shows that the one before was lost, too. Linux adds up to 4 ms for its timers."""
    sent = run(20, 0.01, once(18, 19))
    last = 19 * 0.01
    probe = times(sent, 19)[1]
    assert probe == pytest.approx(last + 2 * RTT, abs=0.004)
    assert times(sent, 18)[1] == pytest.approx(probe + RTT, abs=1e-6)


def test_a_lone_segment_waits_200_ms_more_for_a_delayed_ack() -> None:
    """RTT 240 ms, one sample: RTO = 240 + 4 x 120 = 720 ms; the probe goes after 480 + 200 ms.

    It starts the RTO anew; that is doubled when it expires again.
    """
    sent = run(1, 1.0, lambda seen, before: before < 4, way=0.12, think=1.0)
    expected = [0, 0.68, 0.68 + 0.72, 1.4 + 1.44, 2.84 + 2.88]
    assert times(sent, 0) == pytest.approx(expected, abs=1e-6)


def test_the_probe_of_a_lone_segment_is_never_later_than_the_rto() -> None:
    """2 x 40 + 200 ms would be after the RTO of 240 ms: the probe goes then, in its place."""
    sent = run(20, 0.045, lambda seen, before: seen[1] == 19 and before < 4)
    start = 19 * 0.045
    expected = [0, RTO, 2 * RTO, 4 * RTO, 8 * RTO]
    assert [at - start for at in times(sent, 19)] == pytest.approx(expected, abs=1e-6)


def test_no_probe_in_a_recovery() -> None:
    """Tokens 10 and 11 are lost twice. Only the RTO, 240 ms after the last progress, brings them.

    Token 12's ACK has shown their loss; the RTO leaves room for one segment.
    """
    sent = run(13, 0.01, lambda seen, before: seen[1] in (10, 11) and before < 2)
    seen, expired = 0.12 + RTT, 0.09 + RTT + RTO
    assert times(sent, 10) == pytest.approx([0.10, seen, expired], abs=1e-6)
    assert times(sent, 11) == pytest.approx([0.11, seen, expired + RTT], abs=1e-6)


# -- the congestion window (RFC 6928, 5681, 9438) ------------------------------------------------


def test_ten_segments_and_no_more_leave_before_an_ack() -> None:
    sent = run([b"x" * 1000] * 14, 0.0, lambda seen, before: False)
    early = [first for at, first, _ in sent if at < RTT - 1e-6]
    assert early == list(range(10))


def test_an_outage_stops_the_sender_after_ten_segments() -> None:
    """Tokens every 15 ms; nothing arrives from token 20 on, for 600 ms.

    Ten segments leave; the last one probes; the RTO resends the first, and once more. Then slow
    start: 1, 2 and 4 segments an RTT, and what has waited leaves as one.
    """
    start = 20 * 0.015
    sent = run(80, 0.015, lambda seen, before: start - 1e-6 < seen[0] < start + 0.6)
    late = [(at - start, first, stop) for at, first, stop in sent if at > start - 1e-6]
    assert [(first, stop) for _, first, stop in late[:10]] == [(n, n + 1) for n in range(20, 30)]
    assert late[9][0] == pytest.approx(9 * 0.015)
    probe = late[10]
    assert probe[1:] == (29, 30)
    assert probe[0] == pytest.approx(9 * 0.015 + 2 * RTT, abs=0.004)
    expired = probe[0] + RTO
    again = expired + 2 * RTO
    rest = [(expired, 20, 21), (again, 20, 21), (again + RTT, 21, 23), (again + 2 * RTT, 23, 27)]
    rest += [(again + 3 * RTT, 27, 30)]
    assert late[11:16] == [(pytest.approx(at, abs=1e-6), *span) for at, *span in rest]
    assert late[16][0] == pytest.approx(again + 3 * RTT, abs=0.006)
    assert late[16][1:] == (30, 80)
    assert len(late) == 17


@pytest.mark.parametrize(("losses", "window"), [((), 10), ((10,), 7), ((10, 12), 7), ((10, 25), 4)])
def test_the_window_is_cut_by_0_7_once_a_round(losses: tuple[int, ...], window: int) -> None:
    """How many segments leave in an outage tells it: 10, 7 or 4.9. RTT and spacing hold three.

    Token 12 left before token 10's loss was seen: the same round. Token 25 is another one.
    """
    start = 40 * 0.02

    def lost(seen: Sent, before: int) -> bool:
        return once(*losses)(seen, before) or start - 1e-6 < seen[0] < start + 1.0

    sent = run(90, 0.02, lost)
    firsts = [first for at, first, _ in sent if start - 1e-6 < at < start + 0.9]
    new = [first for n, first in enumerate(firsts) if first not in firsts[:n]]
    assert new == list(range(40, 40 + window))
