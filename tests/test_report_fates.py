"""The fate of every packet, from captures and from the links' logs, against hand-made runs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report_folders import (  # type: ignore[import-not-found, unused-ignore]
    answer,
    packet,
    packet_table,
    token_table,
)

from analysis.report.fates import packet_fates


def fates_of(packets, tokens, logs=None) -> list[tuple]:
    found = packet_fates(packets, tokens, logs)
    return [
        (row.side, row.low, row.high, row.fate, row.unlocked_from, row.unlocked_to)
        for row in found.itertuples()
    ]


EXPECTED = [
    ("client", -1, -1, "arrived", 0, 0),
    ("server", 0, 1, "arrived", 0, 1),
    ("client", -1, -1, "arrived", 1, 1),
    ("server", 1, 2, "lost", 0, 0),
    ("server", 1, 3, "lost", 0, 0),
    ("server", 1, 4, "arrived", 1, 4),
    ("client", -1, -1, "lost", 0, 0),
    ("server", 1, 4, "arrived", 4, 4),  # repeated, and nothing new
]


def test_fates_from_captures():
    packets, tokens = answer()
    assert fates_of(packets, tokens) == EXPECTED
    assert set(packet_fates(packets, tokens, None)["known_by"]) == {"captures"}


def test_twins_are_told_apart_by_the_usual_delay():
    packets = packet_table(
        packet(0.0, "server", 0.02, 0, 1),
        packet(0.1, "server", None, 1, 1),
        packet(0.2, "server", 0.2201, 1, 1),
        packet(0.3, "server", None, 1, 1),
    )
    fates = packet_fates(packets, token_table([0.02, 0.2201]), None)
    assert list(fates["fate"]) == ["arrived", "lost", "arrived", "lost"]


def test_a_hole_holds_back_what_is_behind_it():
    packets = packet_table(
        packet(0.0, "server", 0.02, 0, 1),
        packet(0.1, "server", 0.52, 1, 1),  # overtaken
        packet(0.2, "server", 0.22, 2, 1),
        packet(0.3, "server", 0.32, 3, 1),
    )
    found = fates_of(packets, token_table([0.02, 0.52, 0.52, 0.52]))
    assert [row[4:] for row in found] == [(0, 1), (1, 4), (1, 1), (1, 1)]


def test_fates_of_tcp_by_bytes():
    # A record is a length of four bytes and the token: 6, 7 and 9 bytes, over 2^32 - 10.
    base = 2**32 - 10

    def segment(time, arrived, offset, payload):
        tcp = {"protocol": "tcp", "kind": "", "payload": payload, "size": payload + 66}
        return packet(time, "server", arrived, seq=(base + offset) % 2**32, ack=5, **tcp)

    packets = packet_table(
        segment(-0.1, -0.08, -1, 0),  # SYN, ACK
        segment(0.0, 0.02, 0, 6),
        segment(0.1, None, 6, 7),
        segment(0.2, 0.22, 13, 9),
        segment(0.4, 0.42, 6, 7),
        segment(0.5, 0.52, 22, 9),  # the end record: no token
    )
    found = fates_of(packets, token_table([0.02, 0.42, 0.42], [2, 3, 5]))
    assert [row[1:3] for row in found[1:5]] == [(0, 1), (1, 2), (2, 3), (1, 2)]
    assert [row[3] for row in found] == ["arrived", "arrived", "lost"] + ["arrived"] * 3
    assert [row[4:] for row in found[:5]] == [(0, 0), (0, 1), (0, 0), (1, 1), (1, 3)]
    assert found[5][4:] == (3, 3)


LOG = "number,time,direction,size,fate,due,written,flip\n"


def write_logs(path: Path, packets: pd.DataFrame, access: dict[int, str]) -> None:
    """Logs of both links for the server's packets; `access` says what happens to the n-th."""
    path.mkdir(exist_ok=True)
    sent = packets[packets["direction"] == "sent"]
    down = sent[sent["host"] == "server"]["time"], sent[sent["host"] == "server"]["size"]
    up = sent[sent["host"] == "client"]["time"], sent[sent["host"] == "client"]["size"]
    lines: dict[str, list[str]] = {"server": [], "access": []}
    for number, (time, size) in enumerate(zip(*down, strict=True), 1):
        at = 500 + time  # the links' clock has an origin of its own
        lines["server"].append(f"{number},{at},down,{size},ok,{at + 0.01},{at + 0.01},")
        fate = access.get(number, "ok")
        out = f"{at + 0.03}" if fate in ("ok", "corrupt") else ""
        lines["access"].append(f"{number},{at + 0.01},down,{size},{fate},{at + 0.03},{out},")
    lines["access"].append("0,500.0,down,42,exempt,500.0,500.0,")  # ARP
    for number, (time, size) in enumerate(zip(*up, strict=True), 1):
        at = 500 + time
        lines["access"].append(f"{number},{at},up,{size},ok,{at + 0.01},{at + 0.01},")
        lines["server"].append(f"{number},{at + 0.01},up,{size},ok,{at + 0.02},{at + 0.02},")
    # The next run's probes cross the link before the log is closed.
    lines["access"].append("9,900.0,down,142,ok,900.0,900.0,")
    for link, rows in lines.items():
        (path / f"eloquent-run01-{link}.fates.csv").write_text(LOG + "\n".join(rows) + "\n")


def test_fates_from_link_logs(tmp_path):
    packets, tokens = answer()
    write_logs(tmp_path, packets, {2: "lost", 3: "queue", 5: "corrupt"})
    fates = packet_fates(packets, tokens, tmp_path)
    server = fates[fates["side"] == "server"]
    assert list(server["fate"]) == ["arrived", "lost", "queue", "arrived", "corrupt"]
    assert list(server["link"]) == ["", "access", "access", "", "access"]
    # By the log, not by the captures: 30 ms after it was sent, on the packets' clock.
    arrived = server["arrived_at"].to_numpy()
    assert arrived[[0, 3]] == pytest.approx([0.03, 0.33]) and np.isnan(arrived[[1, 2, 4]]).all()
    assert set(fates["known_by"]) == {"link log"}


def test_a_copy_arrives_where_the_packet_was_lost(tmp_path):
    packets = packet_table(packet(0.0, "server", 0.05, 0, 1))
    write_logs(tmp_path, packets, {})
    (tmp_path / "eloquent-run01-server.fates.csv").write_text(
        f"{LOG}1,500.0,down,70,ok,500.01,500.01,\n1,500.0,down,70,copy,500.02,500.02,\n"
    )
    (tmp_path / "eloquent-run01-access.fates.csv").write_text(
        f"{LOG}1,500.01,down,70,lost,500.04,,\n2,500.02,down,70,ok,500.05,500.05,\n"
    )
    fates = packet_fates(packets, token_table([0.05]), tmp_path)
    assert fates["fate"].tolist() == ["arrived"]
    assert fates["arrived_at"].tolist() == pytest.approx([0.05])


def test_a_log_of_other_packets_is_not_believed(tmp_path):
    packets, tokens = answer()
    write_logs(tmp_path, packets.assign(size=packets["size"] + 1), {2: "lost"})
    assert fates_of(packets, tokens, tmp_path) == EXPECTED
    for text in ("", "no,log\n1,2\n", LOG + "1,500.0,do", LOG + "x,y,down,z,ok,,,\n"):
        for log in tmp_path.iterdir():
            log.write_text(text)
        assert fates_of(packets, tokens, tmp_path) == EXPECTED


def test_fates_with_one_capture_or_none():
    packets, tokens = answer()
    alone = packet_fates(packets[packets["host"] == "server"], tokens, None)
    assert set(alone["fate"]) == {"unknown"}
    assert packet_fates(packets[:0], tokens, None).empty
