"""A question at a name with several addresses: who is asked, when, and what the losers hear."""

from __future__ import annotations

import heapq
import itertools
import random

import pytest

from eloquent import Asked, Client, Ended, Reason, Server
from eloquent.attempts import Attempts
from eloquent.wire import Ack, Cancel, Data, decode, encode

#: RFC 8305, section 5: the recommended "Connection Attempt Delay".
RFC8305_DELAY = 0.25


class Net:
    """Addresses with a server behind them, or nobody; each way of each may be dead."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self.delay: dict[str, float] = {}
        self.deaf: set[str] = set()  # nothing arrives there
        self.dumb: set[str] = set()  # nothing comes back
        self.log: list[tuple[float, str, bytes]] = []
        self.asked: list[Asked] = []
        self.ended: list[Ended] = []
        self.answer = [b"all ", b"is ", b"well"]

    def run(self, core: Attempts[str], until: float) -> list[bytes]:
        order = itertools.count()
        queue: list[tuple[float, int, str, str, bytes]] = []
        shown: list[bytes] = []
        now = 0.0
        while now <= until:
            for datagram, address in core.datagrams(now):
                self.log.append((now, address, datagram))
                if address in self.servers and address not in self.deaf:
                    due = now + self.delay.get(address, 0.001)
                    heapq.heappush(queue, (due, next(order), "up", address, datagram))
            for server in set(self.servers.values()):
                self._serve(server, now)
                for datagram, back in server.datagrams(now):
                    address = str(back)
                    if address not in self.dumb:
                        due = now + self.delay.get(address, 0.001)
                        heapq.heappush(queue, (due, next(order), "down", address, datagram))
                self._serve(server, now)
            due_times = [core.next_timeout(), queue[0][0] if queue else None]
            due_times += [server.next_timeout() for server in set(self.servers.values())]
            waiting = [due for due in due_times if due is not None]
            if not waiting:
                break
            now = max(now, min(waiting))
            while queue and queue[0][0] <= now:
                _, _, way, address, datagram = heapq.heappop(queue)
                if way == "up":
                    self.servers[address].receive(datagram, address, now)
                else:
                    shown += [token.data for token in core.receive(datagram, address, now)]
        return shown

    def _serve(self, server: Server, now: float) -> None:
        for event in server.events():
            if isinstance(event, Asked):
                self.asked.append(event)
                for token in self.answer:
                    event.stream.push(token, now)
                event.stream.finish(Reason.STOP, now)
            else:
                self.ended.append(event)

    def to(self, address: str, kind: type) -> list[float]:
        return [at for at, to, data in self.log if to == address and isinstance(decode(data), kind)]


def attempts(*addresses: str, prompt: bytes = b"how are you?") -> Attempts[str]:
    return Attempts(prompt, addresses, 0.0, random_bits=random.Random(3).getrandbits)


def server() -> Server:
    return Server(random_bits=random.Random(4).getrandbits)


def test_one_address_is_asked_as_a_client_does() -> None:
    core = attempts("a")
    client = Client(b"how are you?", 0.0, random_bits=random.Random(3).getrandbits)
    now: float | None = 0.0
    for _ in range(20):
        assert now is not None
        assert core.datagrams(now) == [(datagram, "a") for datagram in client.datagrams(now)]
        now = client.next_timeout()
        assert core.next_timeout() == now


def test_while_the_first_is_silent_the_next_is_found_and_asked() -> None:
    net, core = Net(), attempts("dead", "alive")
    net.servers["alive"] = server()
    assert net.run(core, 3.0) == net.answer
    assert core.answered and core.address == "alive" and core.client.complete
    assert min(at for at, to, _ in net.log if to == "alive") == RFC8305_DELAY
    assert net.to("dead", Cancel)  # it might have had the prompt
    assert len(net.asked) == 1


def test_an_address_that_is_unreachable_costs_no_time() -> None:
    net, core = Net(), attempts("closed", "alive")
    net.servers["alive"] = server()
    assert core.datagrams(0.0)
    core.failed("closed", "Connection refused", 0.01)
    assert core.next_timeout() == 0.01
    assert net.run(core, 3.0) == net.answer
    assert net.to("closed", Cancel) == []  # nobody is there to hear it


def test_two_far_addresses_of_one_server_start_one_answer() -> None:
    """A round trip of 0.4 s is longer than the delay: both are tried before either answers."""
    net, core = Net(), attempts("six", "four")
    net.servers = dict.fromkeys(["six", "four"], server())
    net.delay = {"six": 0.2, "four": 0.2}
    assert net.run(core, 6.0) == net.answer
    assert net.to("four", Ack) and not net.to("four", Data)
    assert core.address == "six"
    assert len(net.asked) == 1


def test_a_server_that_has_the_prompt_and_is_not_heard_is_cancelled() -> None:
    net, core = Net(), attempts("oneway", "alive")
    net.servers = dict.fromkeys(["oneway", "alive"], server())
    net.dumb = {"oneway"}
    assert net.run(core, 4.0) == net.answer
    assert len(net.asked) == 2  # it cannot know that the first has it
    first, second = (ask.stream for ask in net.asked)
    assert first.ended == "cancelled" and second.ended == "complete"


def test_all_of_many_are_tried_and_a_server_may_come_up_late() -> None:
    net, core = Net(), attempts("a", "b", "c")
    net.servers["c"] = server()
    net.deaf = {"c"}
    net.run(core, 10.0)
    firsts = [min(at for at, to, _ in net.log if to == name) for name in "abc"]
    assert firsts == [0.0, RFC8305_DELAY, 2 * RFC8305_DELAY]
    assert not core.answered and not core.closed


def test_nobody_anywhere_ends_as_with_one_address() -> None:
    net, core = Net(), attempts("a", "b")
    net.run(core, 100.0)
    assert core.closed and core.client.error == "lost"
    assert core.next_timeout() is None
    assert max(at for at, _, _ in net.log) <= 60.0


def test_a_reader_who_leaves_tries_no_more() -> None:
    core = attempts("a", "b")
    core.datagrams(0.0)
    core.cancel(0.1)
    sent = [pair for step in range(100) for pair in core.datagrams(0.1 + step / 10)]
    assert {address for _, address in sent} == {"a"}
    assert all(isinstance(decode(datagram), Cancel) for datagram, _ in sent)
    assert core.closed


@pytest.mark.parametrize("forged", ["other id", "other stamp", "no cancel", "garbage"])
def test_only_an_answer_to_our_knock_counts(forged: str) -> None:
    core = attempts("a", "b")
    core.datagrams(0.0)
    (knock,) = [decode(datagram) for datagram, to in core.datagrams(0.25) if to == "b"]
    assert isinstance(knock, Ack) and knock.asks
    genuine = Server()
    genuine.receive(next(d for d, to in core.datagrams(0.75) if to == "b"), "b", 0.75)
    ((answer, _),) = genuine.datagrams(0.75)
    wrong = bytearray(answer)
    if forged == "other id":
        other = Attempts(b"?", ["a", "b"], 0.0)
        other.datagrams(0.0)
        genuine.receive(next(d for d, to in other.datagrams(0.25) if to == "b"), "b", 0.75)
        ((answer, _),) = genuine.datagrams(0.75)
        core.receive(answer, "b", 0.8)
    elif forged == "other stamp":
        message = decode(answer)
        assert isinstance(message, Cancel)
        stamp = message.sent_at ^ 1
        core.receive(encode(Cancel(message.stream_id, stamp, True, message.reason)), "b", 0.8)
    elif forged == "no cancel":
        core.receive(next(d for d, to in core.datagrams(1.25) if to == "b"), "b", 1.3)
    else:
        wrong[-1] ^= 1
        core.receive(bytes(wrong), "b", 0.8)
    assert not core.answered and core.address == "a"


def test_no_address_and_too_long_a_prompt_are_errors() -> None:
    with pytest.raises(ValueError, match="no address"):
        attempts()
    with pytest.raises(ValueError, match="more than 245760"):
        attempts("a", "b", prompt=bytes(245761))
