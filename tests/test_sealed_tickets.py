"""Tickets: one session each, in files for the owner alone, and silent about their secret."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import stat
from pathlib import Path

import pytest

from eloquent.sealed import (
    Aead,
    Ticket,
    TicketBook,
    TicketError,
    take_ticket,
    write_ticket,
)

SECRET = bytes(range(100, 132))
ADDRESS = ("server.example", 4433)


def ticket(expires: float = 1000.0, aead: Aead = Aead.AES_256_GCM) -> Ticket:
    return Ticket(0xABCDEF, SECRET, ADDRESS, expires, aead)


def book(now: list[float]) -> TicketBook:
    return TicketBook(ADDRESS, lifetime=60.0, clock=lambda: now[0])


def test_both_sides_of_one_ticket_understand_each_other_once() -> None:
    one = ticket()
    client, server = one.session(server=False), one.session(server=True)
    assert server.opener.open(client.sealer.seal(b"question")) == b"question"
    assert client.opener.open(server.sealer.seal(b"answer")) == b"answer"
    for side in (False, True):
        with pytest.raises(TicketError, match="was used before: take a fresh one"):
            one.session(server=side)


@pytest.mark.parametrize("twice", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_ticket_is_not_copied(twice) -> None:
    with pytest.raises(TicketError, match="cannot be copied"):
        twice(ticket())


def test_a_session_is_not_copied() -> None:
    with pytest.raises(RuntimeError, match="cannot be copied"):
        copy.deepcopy(ticket().session(server=True))


def test_the_secret_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    one = ticket()
    session = one.session(server=True)
    logging.getLogger("test").warning("%s %r %s", one, one, session)
    shown = caplog.text + f"{one}{one!r}{session}{session!r}{vars(session.sealer)}"
    try:
        one.session(server=True)
    except TicketError as error:
        shown += str(error)
    assert "000000000" in shown  # it does name the session
    for spelled in (SECRET.hex(), repr(SECRET), SECRET.decode("latin-1"), "dGVm"):
        assert spelled not in shown


@pytest.mark.parametrize("aead", Aead)
def test_export_and_parse(aead: Aead) -> None:
    one = ticket(1234.5, aead)
    again = Ticket.parse(one.export())
    assert (again.session_id, again.address, again.expires, again.aead) == (
        0xABCDEF,
        ADDRESS,
        1234.5,
        aead,
    )
    packet = one.session(server=False).sealer.seal(b"message")
    assert again.session(server=True).opener.open(packet) == b"message"


GOOD = json.loads(ticket().export())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        "\x00",
        "[" * 100_000,
        *(json.dumps({k: v for k, v in GOOD.items() if k != missing}) for missing in GOOD),
        *(
            json.dumps(GOOD | {key: value})
            for key, value in [
                ("session", "1" + 16 * "0"),
                ("session", "-1"),
                ("session", 5),
                ("secret", SECRET.hex()[2:]),
                ("secret", "zz"),
                ("secret", 5),
                ("host", 5),
                ("port", 0),
                ("port", 65536),
                ("port", True),
                ("port", "4433"),
                ("expires", "soon"),
                ("expires", float("nan")),
                ("expires", float("inf")),
                ("aead", "AES-128-GCM"),
                ("aead", None),
            ]
        ),
    ],
)
def test_what_is_no_ticket(text: str) -> None:
    with pytest.raises(TicketError) as caught:
        Ticket.parse(text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 100
    assert SECRET.hex()[2:] not in str(caught.value)


def test_the_book_gives_each_ticket_once_and_in_time() -> None:
    now = [1000.0]
    tickets = book(now)
    one, two = tickets.issue(), tickets.issue()
    assert one.session_id != two.session_id and one.address == ADDRESS
    assert tickets.take(one.session_id) is one
    assert tickets.take(one.session_id) is None
    assert tickets.take(0x1234) is None
    now[0] = 1059.9
    three = tickets.issue()
    assert not two.expired(now[0])
    now[0] = 1060.0
    assert two.expired(now[0])
    assert tickets.take(two.session_id) is None
    assert tickets.take(three.session_id) is three


def test_a_restarted_server_knows_no_earlier_ticket() -> None:
    now = [1000.0]
    one = book(now).issue()
    assert book(now).take(one.session_id) is None


def test_the_book_forgets_what_was_never_used() -> None:
    now = [0.0]
    tickets = book(now)
    for _ in range(1000):
        tickets.issue()
        now[0] += 1.0
    assert len(tickets) == 60


def test_a_file_is_for_its_owner_and_for_one_use(tmp_path: Path) -> None:
    path = tmp_path / "ticket"
    before = os.umask(0)
    try:
        write_ticket(path, ticket())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_ticket(path, ticket())
    assert take_ticket(path, 999.0).session_id == 0xABCDEF
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        take_ticket(path, 999.0)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o602, 0o610, 0o660, 0o666, 0o677])
def test_a_file_that_others_can_use(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "ticket"
    write_ticket(path, ticket())
    path.chmod(mode)
    with pytest.raises(TicketError) as caught:
        take_ticket(path, 0.0)
    assert str(caught.value) == (
        f"{path}: others than its owner may use it (mode {mode:04o}, not 0600): take a fresh ticket"
    )
    assert path.exists()


def test_an_expired_file(tmp_path: Path) -> None:
    path = tmp_path / "ticket"
    write_ticket(path, ticket(expires=1000.0))
    with pytest.raises(TicketError, match=r"expired 5 s ago: take a fresh ticket$"):
        take_ticket(path, 1005.0)


def test_files_that_are_none(tmp_path: Path) -> None:
    write_ticket(tmp_path / "ticket", ticket())
    (tmp_path / "link").symlink_to(tmp_path / "ticket")
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "picture").write_bytes(b"\x89PNG\xff")
    (tmp_path / "picture").chmod(0o600)
    for name, why in [
        ("link", OSError),
        ("pipe", TicketError),
        (".", OSError),
        ("picture", TicketError),
    ]:
        with pytest.raises(why):
            take_ticket(tmp_path / name, 0.0)
    assert (tmp_path / "ticket").exists()


def test_of_two_readers_one_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, unlink = tmp_path / "ticket", os.unlink
    write_ticket(path, ticket())

    def too_late(name: Path) -> None:
        unlink(name)  # by the other one, after both have read it
        unlink(name)

    monkeypatch.setattr(os, "unlink", too_late)
    with pytest.raises(TicketError, match="somebody else has taken it"):
        take_ticket(path, 0.0)
