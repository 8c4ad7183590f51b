"""The asyncio bindings on real sockets: which address answers, several addresses, full sockets."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from eloquent import Server, aio, udp
from eloquent.wire import Data, Reason, encode

WORDS = [b"from ", b"here"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="IP_PKTINFO as Linux has it")


async def say(prompt: bytes, reply: aio.Reply) -> None:
    for word in WORDS:
        await reply.send(word)


def needs(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as trial:
            trial.bind((host, 0))
    except OSError as error:
        pytest.skip(f"{host} is no address of this machine: {error.strerror}")


def run(main: Any) -> Any:
    return asyncio.run(asyncio.wait_for(main, 20))


async def asked(port: int, host: str) -> list[bytes]:
    return [token.data async for token in aio.ask(b"where?", host, port)]


@linux
@pytest.mark.parametrize(
    ("listen", "host"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.2"),
        ("::", "127.0.0.2"),  # as an IPv4-mapped address
        ("::", "::1"),
        ("127.0.0.2", "127.0.0.2"),
    ],
)
def test_the_answer_leaves_from_the_address_that_was_asked(listen: str, host: str) -> None:
    """A connected socket is the judge: the kernel hands it what its peer sent, nothing else."""
    needs(listen)
    needs(host)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await aio.serve(say, listen, 0)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as client:
            client.setblocking(False)
            client.connect((host, server.address[1]))
            await loop.sock_sendall(client, encode(Data(7, 1, False, 0, (b"?",), Reason.STOP)))
            assert await asyncio.wait_for(loop.sock_recv(client, 2048), 5)
        assert await asked(server.address[1], host) == WORDS
        server.close()

    run(main())


@linux
def test_a_path_is_the_pair_of_both_ends() -> None:
    """The same client at two addresses of a server: two paths, each proven for itself."""

    async def main() -> set[Any]:
        seen: set[udp.Address] = set()

        class Watched(aio.ServerEndpoint):
            def _received(self, arrived: list[tuple[bytes, udp.Address]]) -> None:
                seen.update(address for _, address in arrived)
                super()._received(arrived)

        server = Watched(Server(), say)
        await server.open("0.0.0.0", 0)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for host in ("127.0.0.1", "127.0.0.2", "127.0.0.1"):
                client.sendto(b"x", (host, server.address[1]))
                await asyncio.sleep(0.02)
        server.close()
        return seen

    seen = run(main())
    assert len(seen) == 2
    assert len({address.peer for address in seen}) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_system_without_packet_information_still_serves(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the kernel chooses the source; "any address" means this host to a client."""
    monkeypatch.setattr(udp, "_IP_PKTINFO", None)

    async def main() -> list[bytes]:
        server = await aio.serve(say, "0.0.0.0", 0)
        words = await asked(server.address[1], host)
        server.close()
        return words

    assert run(main()) == WORDS


def test_a_loop_that_cannot_watch_sockets() -> None:
    """As that of Windows; both ends fall back on the loop's own transports."""

    class Proactor(asyncio.SelectorEventLoop):
        def add_reader(self, *arguments: Any) -> None:  # type: ignore[override]
            raise NotImplementedError

    async def main() -> list[bytes]:
        server = await aio.serve(say, "127.0.0.1", 0)
        words = await asked(server.address[1], "127.0.0.1")
        server.close()
        return words

    loop = Proactor()
    try:
        assert loop.run_until_complete(asyncio.wait_for(main(), 20)) == WORDS
    finally:
        loop.close()


@contextmanager
def names(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> Iterator[None]:
    """A name with these addresses, in this order."""
    genuine = socket.getaddrinfo

    def found(host: Any, port: Any, *arguments: Any, **options: Any) -> list[Any]:
        if host != "many.example":
            return genuine(host, port, *arguments, **options)
        return [one for each in hosts for one in genuine(each, port, *arguments, **options)]

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", found)
        yield


@linux
@pytest.mark.parametrize("first", ["closed", "silent", "closed6"])
def test_all_addresses_of_a_name_are_tried(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` is often ::1 first, and a server often at 127.0.0.1 alone."""
    lost = "::1" if first == "closed6" else "127.0.0.3"
    needs(lost)

    async def main() -> list[bytes]:
        server = await aio.serve(say, "127.0.0.2", 0)
        port = server.address[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            if first == "silent":
                silent.bind((lost, port))
            words = await asked(port, "many.example")
        server.close()
        return words

    with names(monkeypatch, lost, "127.0.0.2"):
        assert run(main()) == WORDS


@linux
def test_a_server_with_both_addresses_answers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[bytes] = []

    async def slow(prompt: bytes, reply: aio.Reply) -> None:
        prompts.append(prompt)
        await asyncio.sleep(0.6)  # longer than it takes until the next address is tried
        await reply.send(b"once")

    async def main() -> list[bytes]:
        server = await aio.serve(slow, "0.0.0.0", 0)
        words = await asked(server.address[1], "many.example")
        server.close()
        return words

    with names(monkeypatch, "127.0.0.3", "127.0.0.2"):
        assert run(main()) == [b"once"]
    assert prompts == [b"where?"]


@linux
def test_the_kernel_says_that_a_port_is_closed() -> None:
    async def main() -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held:
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
        endpoint = await aio.connect(b"?", "127.0.0.1", port, lambda tokens: None)
        while not endpoint.core.unreachable:
            await asyncio.sleep(0.01)
        assert not endpoint.core.answered and not endpoint.core.closed  # it goes on trying
        (why,) = endpoint.core.unreachable.values()
        server = await aio.serve(say, "127.0.0.1", port)  # and rightly
        while not endpoint.client.complete:
            await asyncio.sleep(0.01)
        endpoint.close()
        server.close()
        return why

    assert run(main()) == "Connection refused"


def test_a_link_local_address_names_its_link() -> None:
    needs("::1")

    async def main() -> None:
        with pytest.raises(OSError, match="fe80::1%eth0, for example"):
            await aio.connect(b"?", "fe80::1", 9, lambda tokens: None)

    run(main())


def test_a_full_socket_gets_no_old_datagrams(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits while nothing can leave is one stream's flight at most, and then all arrives."""
    full = False
    served: Any = None
    genuine = udp.UdpSocket.send

    def send(self: udp.UdpSocket, data: bytes, address: udp.Address) -> bool:
        if full and self is served:
            raise BlockingIOError
        return genuine(self, data, address)

    async def many(prompt: bytes, reply: aio.Reply) -> None:
        for number in range(60):
            await reply.send(b"%d " % number)
            await asyncio.sleep(0.01)

    async def main() -> tuple[list[bytes], int]:
        nonlocal full, served
        server = await aio.serve(many, "127.0.0.1", 0)
        loop = server.loop
        (served,) = server._sockets
        waiting = 0
        writable: list[Any] = []
        # The kernel's loopback is never full, so its socket would be writable at once.
        monkeypatch.setattr(loop, "add_writer", lambda sock, call: writable.append(call))
        monkeypatch.setattr(loop, "remove_writer", lambda sock: None)
        got: list[bytes] = []
        async for token in aio.ask(b"?", "127.0.0.1", server.address[1]):
            got.append(token.data)
            if token.index == 10:
                full = True
                await asyncio.sleep(0.3)  # 30 more tokens, and some timeouts
                waiting = len(server._outgoing)
                full = False
                writable.pop()()
                assert not server._outgoing
        server.close()
        return got, waiting

    monkeypatch.setattr(udp.UdpSocket, "send", send)
    got, waiting = run(main())
    assert got == [b"%d " % number for number in range(60)]
    assert waiting == 1


def test_what_arrives_together_is_read_together() -> None:
    async def main() -> list[int]:
        batches: list[int] = []

        class Watched(aio.ServerEndpoint):
            def _received(self, arrived: list[tuple[bytes, udp.Address]]) -> None:
                batches.append(len(arrived))
                super()._received(arrived)

        server = Watched(Server(), say)
        await server.open("127.0.0.1", 0)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for _ in range(100):
                client.sendto(b"x", ("127.0.0.1", server.address[1]))
        while sum(batches) < 100:
            await asyncio.sleep(0.01)
        server.close()
        return batches

    assert run(main()) == [64, 36]
