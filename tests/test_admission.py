"""Who gets a place and memory at a server: one host never shuts out the others."""

from __future__ import annotations

import itertools
import random
import tracemalloc

import pytest

from eloquent import Asked, Client, Ended, Reason, Server, schemes
from eloquent.admission import (
    IDLE_AFTER,
    MAX_PROMPT_BYTES,
    MAX_TOTAL_BYTES,
    PROMPT_DEADLINE,
    PROOF_DEADLINE,
    RESERVED_BYTES,
    host_of,
)
from eloquent.cookies import LIFETIME, Cookies
from eloquent.stream import LEASE, Stream
from eloquent.timers import Timers
from eloquent.window import TOKEN_OVERHEAD, Window
from eloquent.wire import Ack, Cancel, CancelReason, Data, decode, encode


def server(max_streams: int = 32) -> Server:
    return Server(random_bits=random.Random(1).getrandbits, max_streams=max_streams)


class Host:
    """Clients of one host. They hear what is sent to them at once."""

    def __init__(self, end: Server, name: str, seed: int = 2) -> None:
        self.end, self.name = end, name
        self.bits = random.Random(seed).getrandbits
        self.ports = itertools.count(1)
        self.clients: dict[tuple[str, int], Client] = {}

    def ask(self, prompt: bytes, now: float) -> Client:
        user = Client(prompt, now, random_bits=self.bits)
        self.clients[self.name, next(self.ports)] = user
        return user

    def talk(self, now: float) -> None:
        """What is due on both sides, and the answers to that."""
        for _ in range(6):
            for address, user in self.clients.items():
                for datagram in user.datagrams(now):
                    self.end.receive(datagram, address, now)
            for datagram, to in self.end.datagrams(now):
                if isinstance(to, tuple) and to in self.clients:
                    self.clients[to].receive(datagram, now)


def prompts(end: Server) -> list[Asked]:
    return [event for event in end.events() if isinstance(event, Asked)]


def hog(end: Server, name: str, count: int, *, finish: bool) -> list[Stream]:
    """Prompts of one host, whose address is real; it then acknowledges nothing."""
    host = Host(end, name, seed=hash(name) % 1000)
    streams = []
    for _ in range(count):
        host.ask(b"x", 0.0)
        host.talk(0.0)
        host.talk(0.4)
        streams += [event.stream for event in prompts(end)]
    for stream in streams:
        if finish and stream.ended is None:
            stream.finish(Reason.STOP, 1.0)
    return streams


def test_whose_an_address_is() -> None:
    assert host_of(("10.0.0.1", 5)) == host_of(("10.0.0.1", 6)) != host_of(("10.0.0.2", 5))
    assert host_of(("::ffff:10.0.0.1", 5, 0, 0)) == host_of(("10.0.0.1", 5))
    one = host_of(("2001:db8:0:1::1", 5, 0, 0))
    assert (
        one == host_of(("2001:db8:0:1:ffff::9", 7, 0, 0)) != host_of(("2001:db8:0:2::1", 5, 0, 0))
    )
    assert host_of(("fe80::1%eth0", 5, 0, 2)) == host_of(("fe80::2%eth0", 5, 0, 2))
    assert host_of((("10.0.0.1", 5), b"which address of ours")) == host_of(("10.0.0.1", 5))
    assert host_of("a name") == "a name" and host_of(7) == 7


def test_answers_that_nobody_acknowledges_do_not_keep_others_out() -> None:
    """A host that holds every place with answered prompts, and a PING each 50 s."""
    end = server()
    streams = hog(end, "10.0.0.66", 32, finish=True)
    assert end.streams == 32
    for now in (50.0, 100.0):
        for number, stream in enumerate(streams):
            ping = Ack(stream.stream_id, number, False, 0, 0, asks=True)
            end.receive(encode(ping), stream.address, now)
        end.datagrams(now)
    assert end.streams == 32  # nobody else wants a place
    honest = Host(end, "10.0.0.1")
    users = [honest.ask(b"hello", 101.0) for _ in range(20)]
    for step in range(20):
        honest.talk(101.0 + step / 10)
    assert [event.prompt for event in prompts(end)] == [b"hello"] * 20
    assert all(user.error is None for user in users) and end.streams == 32


def test_the_host_with_the_most_gives_way_and_only_to_one_with_less() -> None:
    end = server()
    busy = hog(end, "10.0.0.66", 32, finish=False)  # models that think
    end.events()
    honest = Host(end, "10.0.0.1")
    users = [honest.ask(b"hello", 1.0) for _ in range(20)]
    for step in range(20):
        honest.talk(1.0 + step / 10)
    served = prompts(end)
    assert len(served) == 16  # half of the places
    assert sum(user.error == "refused by the server: busy" for user in users) == 4
    assert sum(stream.ended is None for stream in busy) == 16


def test_who_gives_way_is_told() -> None:
    end = server(2)
    first, second = hog(end, "10.0.0.66", 2, finish=True)
    end.datagrams(2.0)
    honest = Host(end, "10.0.0.1")
    honest.ask(b"hello", 20.0)
    honest.talk(20.0)
    for step in range(5):
        honest.talk(20.4 + step)
    gone = first if first.ended else second
    assert (gone.ended, gone.proven) == ("lost", True)
    end.receive(encode(Ack(gone.stream_id, 3, False, 0, 0, asks=True)), gone.address, 30.0)
    replies = [decode(datagram) for datagram, _ in end.datagrams(30.0)]
    assert Cancel(gone.stream_id, 3, True, CancelReason.BUSY) in replies


def test_prompts_out_of_order_leave_memory_to_running_answers() -> None:
    end = server(512)
    honest = Host(end, "10.0.0.1")
    honest.ask(b"hello", 0.0)
    honest.talk(0.0)
    (asked,) = prompts(end)
    evil = Host(end, "10.0.0.66", seed=5)
    for number in range(258):
        evil.ask(bytes(2000), 1.0)
        evil.talk(1.0)
        if number % 20 == 0:
            evil.talk(1.4)
    end.events()
    # All of them are proven or in order; now pieces come that leave out the first.
    for stream in list(end._streams.values()):
        if stream is not asked.stream:
            end._end(stream, "lost", None)
    opened = []
    for number in range(258):
        address = ("10.0.0.66", 10_000 + number)
        cookie = end._cookies.make(number, address, 2.0)
        end.receive(encode(Ack(number, 0, False, 0, cookie)), address, 2.0)
        for index in range(1, 240):
            piece = Data(number, index, False, index, (bytes(1024),))
            end.receive(encode(piece), address, 2.0)
        opened.append(number)
    assert end.bytes_held <= MAX_PROMPT_BYTES + 300 * 1024
    assert asked.stream.ended is None and asked.stream.room() > 30_000
    honest.ask(bytes(5000), 3.0)
    for step in range(8):
        honest.talk(3.0 + step * 0.4)
    assert [len(event.prompt) for event in prompts(end)] == [5000]
    end.datagrams(2.0 + PROMPT_DEADLINE)
    assert end._admission.prompt_bytes == 0


@pytest.mark.parametrize("max_streams", [1, 16, 1024])
def test_each_answer_has_a_part_that_nobody_else_takes(max_streams: int) -> None:
    end = server(max_streams)
    part = RESERVED_BYTES // max_streams
    streams = []
    for number in range(min(max_streams, 200)):
        address = (f"10.0.{number // 250}.{number % 250}", 1)
        cookie = end._cookies.make(number, address, 0.0)
        end.receive(encode(Ack(number, 0, False, 0, cookie)), address, 0.0)
        end.receive(encode(Data(number, 0, False, 0, (b"?",), Reason.STOP)), address, 0.0)
        streams += [event.stream for event in prompts(end)]
    assert len(streams) == min(max_streams, 200)
    for stream in streams[:-1]:  # they take all that they get
        while stream.room() >= 1024:
            stream.push(bytes(1024), 0.0)
    assert streams[-1].room() >= min(part, 256 * 1024) - TOKEN_OVERHEAD
    assert end.bytes_held <= MAX_TOTAL_BYTES


def flood(end: Server, count: int, now: float, seed: int = 9) -> None:
    """Prompts from forged addresses, each another one."""
    rng = random.Random(seed)
    for _ in range(count):
        prompt = Data(rng.getrandbits(64), 0, False, 0, (b"run!",), Reason.STOP)
        end.receive(encode(prompt), (f"198.51.{rng.randrange(256)}.7", rng.randrange(65536)), now)


def test_a_flood_of_forged_prompts_starts_few_handlers() -> None:
    end = server(1024)
    running: set[Stream] = set()
    started = 0
    for step in range(60):
        flood(end, 100, step / 10, seed=step)
        sent = sum(len(datagram) for datagram, _ in end.datagrams(step / 10))
        assert sent <= 3 * 100 * 24  # RFC 9000, section 8.1: the prompts have 24 bytes or more
        for event in end.events():
            if isinstance(event, Asked):
                running.add(event.stream)
                started += 1
            elif isinstance(event, Ended):
                running.discard(event.stream)
        assert len(running) <= 1024 // 16
    assert started == 1024 // 16  # of 6000


def test_those_that_never_prove_their_address_give_way_to_others() -> None:
    end = server(1024)
    flood(end, 100, 0.0)
    assert len(prompts(end)) == 64
    flood(end, 100, PROOF_DEADLINE + 0.1, seed=10)
    events = end.events()
    assert sum(isinstance(event, Ended) for event in events) == 64
    assert sum(isinstance(event, Asked) for event in events) == 64


def test_honest_clients_are_served_in_a_flood_of_20000_a_second() -> None:
    end = server(1024)
    rng = random.Random(4)
    hosts = [Host(end, f"10.0.1.{n}", seed=n) for n in range(20)]
    users = [host.ask(b"hello", 0.05) for host in hosts]
    served = 0
    where = {address: user for host in hosts for address, user in host.clients.items()}
    late: list[tuple[float, Client, bytes]] = []
    for step in range(150):  # 1.5 s of it
        now = step / 100
        flood(end, 200, now, seed=rng.getrandbits(30))
        for host in hosts if now >= 0.05 else []:
            for address, user in host.clients.items():
                for datagram in user.datagrams(now):
                    end.receive(datagram, address, now)
        served += sum(event.prompt == b"hello" for event in prompts(end))
        for datagram, to in end.datagrams(now):
            if isinstance(to, tuple) and to in where:
                late.append((now + 0.04, where[to], datagram))
        for at, user, datagram in list(late):
            if at <= now:
                user.receive(datagram, now)
                late.remove((at, user, datagram))
    assert served == 20
    assert all(user.error is None for user in users)


def test_a_prompt_has_to_be_complete_in_time() -> None:
    end = server()
    for step in range(int(PROMPT_DEADLINE) + 20):  # a piece each second, never the last one
        end.receive(encode(Data(7, step, False, step, (b"x",))), "someone", float(step))
        end.datagrams(float(step))
        if end.streams == 0:
            break
    assert step == PROMPT_DEADLINE
    later = step + 10.0
    end.receive(encode(Data(7, 999, False, 999, (b"x",))), "someone", later)
    ((datagram, _),) = end.datagrams(later)
    assert decode(datagram) == Cancel(7, 999, True, CancelReason.TOO_LARGE)


def test_a_prompt_whose_stream_has_ended_is_not_handed_out() -> None:
    end = server()
    end.receive(encode(Data(7, 0, False, 0, (b"x",), Reason.STOP)), "someone", 0.0)
    end.receive(encode(Cancel(7, 1, False, CancelReason.READER)), "someone", 0.0)
    assert [type(event) for event in end.events()] == [Ended]


def test_a_thinking_model_is_not_idle() -> None:
    end = server(1)
    (stream,) = hog(end, "10.0.0.1", 1, finish=False)
    assert stream.waits_since is None
    stream.push(b"x", 5.0)
    assert stream.waits_since == 5.0
    assert 0 < IDLE_AFTER < LEASE


def test_cookies_hold_for_one_stream_one_address_and_a_while() -> None:
    cookies = Cookies(bytes(16))
    cookie = cookies.make(7, ("10.0.0.1", 5), 100.0)
    assert 0 <= cookie < 2**32
    assert cookies.proves(cookie, 7, ("10.0.0.1", 5), 100.0 + LIFETIME)
    assert not cookies.proves(cookie, 7, ("10.0.0.1", 5), 100.0 + 2 * LIFETIME)
    assert not cookies.proves(cookie, 8, ("10.0.0.1", 5), 100.0)
    assert not cookies.proves(cookie, 7, ("10.0.0.1", 6), 100.0)
    assert not Cookies(bytes([1] * 16)).proves(cookie, 7, ("10.0.0.1", 5), 100.0)


def test_timers_keep_no_more_than_twice_what_lives() -> None:
    timers: Timers[int] = Timers()
    for step in range(
        100_000
    ):  # each is put forward, then expires, then has its far deadline again
        for item in timers.expired(step * 0.01):
            timers.set_by(item, step * 0.01 + 60.0)
        timers.set_by(step % 7, step * 0.01 + 0.02)
        assert len(timers._heap) <= 2 * 7 + 64
    timers.drop(3)
    assert sorted(timers.expired(1e9)) == [0, 1, 2, 4, 5, 6]
    assert timers.next() is None


def test_a_nearer_deadline_takes_the_place_of_a_farther_one() -> None:
    timers: Timers[str] = Timers()
    timers.set_by("a", 5.0)
    timers.set_by("a", 3.0)
    timers.set_by("a", 9.0)
    timers.set_by("b", 4.0)
    assert timers.next() == 3.0
    assert timers.expired(4.0) == ["a", "b"]
    assert timers.expired(9.0) == []


def test_copies_that_the_timer_may_not_send_do_not_pile_up() -> None:
    """As with a window so full that the sender holds the scheme's timer up."""
    window, scheme = Window(), schemes.create("duplicate:3:20")
    for _ in range(1000):
        window.push(b"word")
    for run in window.pack(scheme.on_token(window, 0.0)):
        window.mark_sent(run, 0.0)
    tracemalloc.start()
    for step in range(1000):
        assert len(list(scheme.on_timeout(window, 1.0 + step / 5, 0.2))) == 1000
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 500_000  # 16 MB if each timeout left its own


def test_a_client_that_pings_and_acknowledges_nothing_leaves_no_stale_timers() -> None:
    end = server()
    (stream,) = hog(end, "10.0.0.1", 1, finish=False)
    for step in range(60 * 30):
        now = 1.0 + step / 30
        if step % 30 == 0:
            ping = Ack(stream.stream_id, step, False, 0, 0, asks=True)
            end.receive(encode(ping), stream.address, now)
        stream.push(b"word", now)
        end.datagrams(now)
        assert len(end._timers._heap) <= 2 + 64
    assert stream.ended is None
