"""Results folders with known content for the tests of the report, and what a page holds."""

from __future__ import annotations

import itertools
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd

from analysis.capture_reader import PACKET_COLUMNS
from analysis.report.command import main
from analysis.results import TOKEN_COLUMNS, ResultsFolder

RUN = {"scenario": "wifi_loss", "scheme": "eloquent", "run": 1}
STALLS = {("eloquent", 1): 0.1, ("eloquent", 2): 0.2, ("tcp", 1): 0.3, ("tcp", 2): 0.5}
MANIFEST = {
    "scenario": "wifi_loss",
    "title": "WiFi with bursts of outages",
    "command_line": ["scenarios/wifi_loss.py", "--runs", "2", "--out", "my results"],
    "engine": "emulated",
    "seed": 7,
    "runs": 2,
    "schemes": ["eloquent", "tcp"],
    "theta": 0.2,
    "network": {
        "access": {
            "name": "wifi",
            "up": {"delay": 0.003, "jitter": 0.001, "loss": None},
            "down": {"delay": 0.003, "jitter": 0.001, "loss": {"model": "bernoulli", "loss": 0.1}},
            "source": "assumed",
        }
    },
    "machine": {"kernel": "6.1", "cores": 2},
    "versions": {"numpy": "2.4.6", "mininet": None},
    "commit": "abcdef1",
}


def packet(time, side, arrived=None, first=-1, count=-1, **more) -> list[dict]:
    """What the captures hold of a packet: one row where it was sent, one where it arrived."""
    row = dict.fromkeys(PACKET_COLUMNS, -1) | RUN
    row |= {"protocol": "udp", "size": 70, "payload": 28, "end": 0 if first >= 0 else -1}
    row |= {"kind": "data" if first >= 0 else "ack", "first": first, "count": count} | more
    other = {"server": "client", "client": "server"}[side]
    rows = [row | {"host": side, "direction": "sent", "time": time}]
    if arrived is not None:
        rows.append(row | {"host": other, "direction": "received", "time": arrived})
    return rows


def packet_table(*packets: list[dict]) -> pd.DataFrame:
    return pd.DataFrame(list(itertools.chain(*packets)))[PACKET_COLUMNS]


def token_table(shown: list[float], sizes: list[int] | None = None, **more) -> pd.DataFrame:
    rows = [
        RUN
        | {"index": index, "n_bytes": 4 if sizes is None else sizes[index]}
        | {"generated_at": 0.1 * index, "sent_at": 0.1 * index, "received_at": time}
        | {"rendered_at": time}
        | more
        for index, time in enumerate(shown)
    ]
    return pd.DataFrame(rows)[TOKEN_COLUMNS]


def answer(shift: float = 0.0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Four tokens; the datagrams with the second are lost twice, then come all at once."""
    packets = packet_table(
        packet(-0.3, "client", -0.28, 0, 1),  # the prompt
        packet(0.0, "server", 0.02, 0, 1, payload=24, size=66),
        packet(0.021, "client", 0.041),
        packet(0.1, "server", None, 1, 1, size=67),
        packet(0.2, "server", None, 1, 2, size=71),
        packet(0.3, "server", 0.32 + shift, 1, 3, size=75),
        packet(0.321, "client", None),
        packet(0.36, "server", 0.38, 1, 3, size=75),
    )
    return packets, token_table([0.02, 0.32 + shift, 0.32 + shift, 0.32 + shift])


def folder(path: Path, manifest=MANIFEST, stalls=STALLS, consolidate=True) -> Path:
    made = ResultsFolder.create(path)
    made.write_manifest(manifest)
    for (scheme, run), stall in stalls.items():
        label = {"scheme": scheme, "run": run}
        packets, tokens = answer()
        made.write_tokens(scheme, run, tokens.assign(**label))
        for host in ("client", "server"):
            made.write_packets(scheme, run, host, packets[packets["host"] == host].assign(**label))
        made.append_summary(
            {"scenario": "wifi_loss", **label, "seed": 1000 + run, "stall_ratio": stall}
            | {"gap_p99": 0.1234 * run, "ttft": 0.3, "tokens": 4, "tokens_lost": 0}
            | {"bytes_per_token": 150.0 + run, "wire_bytes": 600, "link": "user"}
        )
    if consolidate:
        made.consolidate()
    return path


def add_columns(path: Path, **columns) -> None:
    """As a later version of the testbed would: further columns of summary.csv."""
    table = pd.read_csv(path / "summary.csv").assign(**columns)
    table.to_csv(path / "summary.csv", index=False)


class Page(HTMLParser):
    """Everything that the tests ask of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.words: list[str] = []
        self._open: list[str] = []
        self._rows: list[list[str]] = []
        self._title = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, {name: value or "" for name, value in attributes}))
        self._open.append(tag)
        if tag == "table":
            self._rows, self._title = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("th", "td"):
            self._rows[-1].append("")

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass
        if tag == "table":
            self.tables.setdefault(self._title, self._rows)

    def handle_data(self, data):
        self.words.append(data)
        if "caption" in self._open:
            self._title += data
        elif "th" in self._open or "td" in self._open:
            self._rows[-1][-1] += data

    def row(self, table: str, *begin: str) -> dict[str, str]:
        """A row by heading, its minus signs as Python writes them."""
        head, *rows = self.tables[table]
        found = next(row for row in rows if row[: len(begin)] == list(begin))
        return {
            name: cell.replace("\N{MINUS SIGN}", "-")
            for name, cell in zip(head, found, strict=True)
        }

    def says(self, text: str) -> bool:
        return text in " ".join("".join(self.words).split())


def report(path: Path, *arguments: str, status: int = 0) -> Page:
    assert main([str(path), *arguments]) == status
    return Page((path / "report.html").read_text())
