"""The stacks that others wrote: the very bytes, the measuring points, and what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from apps import stacks
from apps.stacks import Stack, StackError, sockets
from eloquent import Reason, Token
from eloquent.window import MAX_PROMPT
from scenarios.measurement import readable

KNOWN = ("quic", "sse", "tcp", "tcp-bbr", "websocket")
#: Characters cut in two, ends of lines, quotes, every byte there is, and more than one segment.
TOKENS = [
    *(b"caf", b"\xc3", b"\xa9 ", b"\n", b"\r\n\r\n", b"\r", b'"\\', b"data: x\n\n", b"\0"),
    *(bytes(range(256)), b"\xff" * 5000, b"end"),
]


def needs_bbr() -> None:
    with socket.socket() as trial:
        try:
            trial.setsockopt(socket.IPPROTO_TCP, sockets.TCP_CONGESTION, b"bbr")
        except OSError as error:
            pytest.skip(f"no bbr here: {error}")


@pytest.fixture(params=KNOWN)
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "tcp-bbr":
        needs_bbr()
    return str(request.param)


def make(name: str) -> Stack:
    return stacks.create(name, "reno")  # which everybody may set


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Answer:
    """An answer out of a list, with a pause before each token; breaks off at `broken`."""

    def __init__(self, tokens: list[bytes], pause: float = 0.0, broken: int | None = None) -> None:
        self.tokens, self.pause, self.broken = tokens, pause, broken
        self.total = 0
        self.times: list[float] = []
        self.reason = Reason.ERROR
        self.how = "open"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for token in self.tokens:
            if self.total == self.broken:
                raise StackError("the model is\nbroken")
            await asyncio.sleep(self.pause)
            self.total += 1
            yield token
        self.reason = Reason.LENGTH

    def sent(self) -> None:
        self.times.append(asyncio.get_running_loop().time())


class Desk:
    """Takes prompts and hands out one answer."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[tuple[bytes, str]] = []

    @contextlib.contextmanager
    def __call__(self, prompt: bytes, control: str) -> Iterator[Answer]:
        self.asked.append((prompt, control))
        try:
            yield self.answer
        except BaseException:  # a cancelled task, a closed generator
            self.answer.how = "lost"
            raise
        self.answer.how = "finished"


class Reader:
    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.congestion_control = ""
        self.stream_bytes = 0
        self.reached = False
        self.unreachable = ""

    def show(self, tokens: list[Token]) -> None:
        self.tokens += tokens


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main()

    asyncio.run(bounded())


async def asked(name: str, desk: Desk, prompt: bytes = b"why?") -> Reader:
    port, reader = free_port(), Reader()
    server = make(name)
    await server.listen("127.0.0.1", port, desk)
    reason = await make(name).ask("127.0.0.1", port, prompt, reader)
    assert reason is Reason.LENGTH
    return reader


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def test_the_names() -> None:
    assert tuple(stacks.names()) == KNOWN


def test_every_byte_survives_and_every_token_has_its_times(name: str) -> None:
    async def main() -> None:
        answer = Answer(TOKENS, pause=0.002)
        desk = Desk(answer)
        start = asyncio.get_running_loop().time()
        reader = await asked(name, desk, "Wie heißt „naïve“?\n".encode())
        assert [token.data for token in reader.tokens] == TOKENS
        assert [token.index for token in reader.tokens] == list(range(len(TOKENS)))
        times = [token.received_at for token in reader.tokens]
        assert times == sorted(times)
        assert len(answer.times) == len(TOKENS)
        assert start < answer.times[0] <= times[0]
        assert [prompt for prompt, _ in desk.asked] == ["Wie heißt „naïve“?\n".encode()]
        assert reader.stream_bytes >= sum(map(len, TOKENS))
        await until(lambda: answer.how == "finished")

    run(main)


def test_the_congestion_control_is_set_and_told_at_both_ends(name: str) -> None:
    async def main() -> None:
        desk = Desk(Answer([b"x"]))
        reader = await asked(name, desk)
        ((_, control),) = desk.asked
        wanted = {"quic": "cubic (aioquic)", "tcp-bbr": "bbr"}.get(name, "reno")
        assert (control, reader.congestion_control) == (wanted, wanted)

    run(main)


def test_accepted_sockets_have_the_options_of_their_listener() -> None:
    with sockets.listener("127.0.0.1", free_port(), "reno") as listener:
        listener.setblocking(True)
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert sockets.congestion_control(accepted) == "reno"


@pytest.mark.parametrize("prompt", [b"", bytes(MAX_PROMPT)], ids=["empty", "longest"])
def test_extreme_prompts(name: str, prompt: bytes) -> None:
    async def main() -> None:
        desk = Desk(Answer([b"yes"]))
        await asked(name, desk, prompt)
        assert desk.asked[0][0] == prompt

    run(main)


def test_a_prompt_beyond_all_bounds_is_refused_in_one_line(name: str) -> None:
    async def main() -> None:
        desk = Desk(Answer([b"no"]))
        with pytest.raises(StackError) as error:
            await asked(name, desk, bytes(3 * MAX_PROMPT))
        assert "\n" not in str(error.value)
        assert desk.asked == []

    run(main)


def test_an_answer_that_breaks_off_is_an_error_in_one_line(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        answer = Answer(TOKENS, pause=0.01, broken=3)
        with pytest.raises(StackError) as error:
            await asked(name, Desk(answer))
        assert "\n" not in str(error.value)
        assert answer.how == "lost"

    run(main)
    stderr = capfd.readouterr().err
    assert "Traceback" not in stderr
    assert "the model is broken" in stderr


def test_a_reader_that_leaves_is_noticed(name: str) -> None:
    async def main() -> None:
        answer = Answer([b"more "] * 10_000, pause=0.005)
        task = asyncio.create_task(asked(name, Desk(answer)))
        await until(lambda: answer.total > 3)
        task.cancel()
        await until(lambda: answer.how == "lost")
        assert answer.total < len(answer.tokens)

    run(main)


def test_a_port_that_is_taken(name: str) -> None:
    async def main() -> None:
        port = free_port()
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM)
        with contextlib.ExitStack() as held:
            for kind in kinds:
                taken = held.enter_context(socket.socket(socket.AF_INET, kind))
                taken.bind(("127.0.0.1", port))
                if kind == socket.SOCK_STREAM:
                    taken.listen()
            with pytest.raises(OSError, match="in use"):
                await make(name).listen("127.0.0.1", port, Desk(Answer([])))

    run(main)


@pytest.mark.parametrize("name", ["tcp", "sse", "websocket"])
def test_nobody_listens(name: str) -> None:
    async def main() -> None:
        with pytest.raises(StackError, match=r"cannot connect to 127\.0\.0\.1, TCP port") as error:
            await stacks.create(name).ask("127.0.0.1", free_port(), b"x", Reader())
        assert "\n" not in str(error.value)

    run(main)


def test_quic_gives_a_silent_server_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("apps.stacks.quic.HANDSHAKE_TIMEOUT", 0.3)
        with pytest.raises(StackError, match=r"UDP port \d+: no answer within 0\.3 s"):
            await stacks.create("quic").ask("127.0.0.1", free_port(), b"x", Reader())

    run(main)


def test_patience_is_bounded_when_the_server_falls_silent(name: str) -> None:
    async def main() -> None:
        port, reader = free_port(), Reader()
        await make(name).listen("127.0.0.1", port, Desk(Answer([b"x"] * 2, pause=0.3)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await make(name).ask("127.0.0.1", port, b"?", reader)
        assert len(reader.tokens) == 1

    start = time.monotonic()
    run(main)
    assert time.monotonic() - start < 6


def test_the_end_of_a_run_silences_quic() -> None:
    async def main() -> None:
        port, reader = free_port(), Reader()
        server = stacks.create("quic")
        await server.listen("127.0.0.1", port, Desk(Answer([b"x"] * 5000, pause=0.01)))
        client = asyncio.create_task(stacks.create("quic").ask("127.0.0.1", port, b"?", reader))
        await until(lambda: len(reader.tokens) > 2)
        server.end()
        with pytest.raises(StackError, match="the QUIC connection ended"):
            await client

    run(main)


@pytest.mark.parametrize(
    ("name", "package"),
    [("sse", "uvicorn"), ("sse", "httpx"), ("websocket", "websockets"), ("quic", "aioquic")],
)
def test_a_missing_package_names_the_extra(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [m for m in sys.modules if m.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)  # which is how Python marks what is not there
    with pytest.raises(StackError, match=rf"{name} needs .*{package}.*\.\[stacks\]"):
        stacks.create(name)
    assert name in stacks.names()


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(StackError, match=f"'gopher'; known: {', '.join(KNOWN)}"):
        stacks.create("gopher")


def test_an_unknown_congestion_control_lists_the_known() -> None:
    with pytest.raises(StackError, match=r"'hybris', only: .*reno"):
        sockets.listener("127.0.0.1", free_port(), "hybris")


def test_captures_are_read_where_our_records_are_on_the_wire() -> None:
    named = ("eloquent", "duplicate:3", *KNOWN)
    assert [readable(name) for name in named] == [True, True, False, False, True, True, False]


def test_a_client_of_tcp_that_talks_nonsense_is_dropped(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def main() -> None:
        port = free_port()
        await stacks.create("tcp", "reno").listen("127.0.0.1", port, Desk(Answer([b"x"])))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        writer.close()

    run(main)
    assert "tcp connection dropped: a record of" in capfd.readouterr().err
