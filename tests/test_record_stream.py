"""Token records among all the protocols that put lengths before what follows.

Each foreign stream is written by hand from its protocol's description; both readers of captures
must find nothing in it, and only in ours what is there.
"""

import json
import struct

import pandas as pd
import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import wrpcap

from analysis.delivery import deliveries
from analysis.pcap.packet_table import read
from analysis.pcap.token_streams import read_tokens, token_flows
from eloquent import records

MAC = "02:00:00:00:00:01"  # given, or scapy asks the network for it
TEXT = [b"Because", b" it", b" rains", b" \xe2\x98", b"\x94.\n", b""]
UP, DOWN = True, False


def prefixed(*bodies, form=">I"):
    return b"".join(struct.pack(form, len(body)) + body for body in bodies)


def smb2(command, body=b"\0" * 65, flags=1):
    """MS-SMB2 2.2.1 behind the length of MS-SMB2 2.1, which is four bytes, the first one 0."""
    head = b"\xfeSMB" + struct.pack("<HHIHHIIQIIQ16x", 64, 1, 0, command, 1, flags, 0, 1, 0, 0, 0)
    return prefixed(head + body)


def kafka(number, body=b"\0\0\0\1\0\0\0\5topic"):
    return prefixed(struct.pack(">I", number) + body)


def message(words):
    return prefixed(json.dumps(words).encode())


def asking(question, answer, count=6):
    return [(UP, question), (DOWN, answer)] * count


FOREIGN = {
    "SMB2": (445, asking(smb2(0, flags=0), smb2(0))),
    "SMB2, only 64 bytes each": (445, asking(smb2(13, b"", 0), smb2(13, b""))),
    "Kafka": (9092, [x for n in range(6) for x in ((UP, kafka(n)), (DOWN, kafka(n)))]),
    "Thrift, framed": (
        9090,
        asking(prefixed(b"\x80\1\0\1\0\0\0\4ping\0\0\0\1\0"), prefixed(b"\x80\1\0\2\0\0\0\4ping")),
    ),
    "PostgreSQL": (
        5432,
        [
            (UP, prefixed(b"\0\3\0\0user\0me\0\0")),
            *asking(b"Q\0\0\0\x0dSELECT 1;", b"T\0\0\0\x21"),
        ],
    ),
    "DNS": (53, asking(prefixed(b"\x12\x34\1\0" + b"\0" * 14, form=">H"), b"\0\x0b\0\1abcdefghi")),
    "AMQP": (5672, [(UP, b"AMQP\0\0\x09\1"), (DOWN, b"\1\0\0\0\0\0\x05\0\x0a\0\x0a\0\xce")]),
    "MongoDB": (27017, asking(struct.pack("<IIII", 16, 1, 0, 2013), struct.pack("<I", 256) * 64)),
    "gRPC, plain HTTP/2": (
        50051,
        [(UP, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), (DOWN, b"\0\0\x06\4\0\0\0\0\0\0\5\0\0\x40\0")],
    ),
    "BitTorrent": (6881, asking(prefixed(b"\4\0\0\0\1"), prefixed(b"\4\0\0\0\2"))),
    "zeros": (9, [(DOWN, bytes(1000))]),
    "text, a request for each": (7000, asking(message({"get": 1}), message({"value": "one"}))),
    "text, one request, then it closes": (
        7000,
        [(UP, message({"subscribe": 1})), *[(DOWN, message({"n": i})) for i in range(9)], "close"],
    ),
    "text that a server tells": (7000, [(DOWN, message({"event": "x" * 60}))] * 20),
    "a few short texts": (7000, [(DOWN, prefixed(b"ok"))] * 5),
    "long texts": (7000, [(UP, prefixed(b"go")), *[(DOWN, prefixed(b"x" * 5000))] * 9]),
    "an error code, no end": (7000, [(UP, b"\0\0"), (DOWN, struct.pack(">iib", -1, 0, 1))]),
    "an end of another count": (
        7000,
        [(UP, prefixed(b"?")), (DOWN, prefixed(*TEXT) + records.encode_end(4, 1))],
    ),
    "an end for no reason": (
        7000,
        [(UP, prefixed(b"?")), (DOWN, prefixed(*TEXT) + struct.pack(">IIB", 2**32 - 1, 6, 9))],
    ),
    "more after the end": (
        7000,
        [(UP, prefixed(b"?")), (DOWN, prefixed(*TEXT) + records.encode_end(6, 1) + b"x")],
    ),
    "another protocol on our port, by chance one record": (
        4433,
        [(UP, b"\x16\3\1"), (DOWN, prefixed(b"ok") + b"HTTP/1.1 ")],
    ),
}


def capture(path, port, talk, syn=True, since=0):
    """`talk` is what each side sends, in order; the packets before `since` are not captured."""
    number, packets = {UP: 1000, DOWN: 2**32 - 20}, []

    def send(to_server, flags, data=b""):
        ends = [("10.0.0.1", 40_000), ("10.0.0.2", port)][:: 1 if to_server else -1]
        tcp = TCP(sport=ends[0][1], dport=ends[1][1], flags=flags, seq=number[to_server] % 2**32)
        if "A" in flags:
            tcp.ack = number[not to_server] % 2**32
        packets.append(
            Ether(src=MAC, dst=MAC) / IP(src=ends[0][0], dst=ends[1][0]) / tcp / Raw(data)
        )
        packets[-1].time = 1_700_000_000 + 0.1 * len(packets)
        number[to_server] += len(data) + ("S" in flags) + ("F" in flags)

    if syn:
        send(UP, "S"), send(DOWN, "SA"), send(UP, "A")
    for part in talk:
        if part == "close":
            send(DOWN, "FA")
        else:
            send(part[0], "PA", part[1])
    wrpcap(str(path), packets[since:])
    return path


def found(path):
    """(sure, tokens, complete) of each answer, the same for both readers."""
    bulk = read_tokens(read(path))[0].streams
    one = deliveries(path).streams
    pd.testing.assert_frame_equal(bulk, one)
    return list(zip(one["sure"], one["tokens"], one["complete"], strict=True))


@pytest.mark.parametrize("syn", [True, False])
@pytest.mark.parametrize("name", FOREIGN)
def test_others_are_no_token_streams(tmp_path, name, syn):
    port, talk = FOREIGN[name]
    assert found(capture(tmp_path / "a.pcap", port, talk, syn)) == []
    assert token_flows(read(tmp_path / "a.pcap")).empty


PROMPT = (UP, records.encode(b"Why?"))
ANSWER = [(DOWN, records.encode(token)) for token in TEXT]
END = (DOWN, records.encode_end(6, 1))


@pytest.mark.parametrize("port", [4433, 8000])
def test_ours_and_how_sure_it_is(tmp_path, port):
    path = tmp_path / "a.pcap"
    assert found(capture(path, port, [PROMPT, *ANSWER, END, "close"])) == [("certain", 6, True)]
    assert found(capture(path, port, [*ANSWER, END], syn=False)) == [("certain", 6, True)]
    assert found(capture(path, port, [PROMPT, *ANSWER])) == [("likely", 6, False)]
    # The prompt in two segments; the file ends in the middle of a token.
    parts = [(UP, PROMPT[1][:2]), (UP, PROMPT[1][2:]), *ANSWER, (DOWN, b"\0\0\0\x0aIt")]
    assert found(capture(path, port, parts)) == [("likely", 6, False)]
    # Joined after the first two tokens: the end counts more than were seen.
    joined = capture(path, port, [PROMPT, *ANSWER, END], since=6)
    assert found(joined) == [("likely", 4, False)]
    # Nobody saw the prompt, but there are many short tokens.
    assert found(capture(path, port, ANSWER * 2, syn=False)) == [("likely", 12, False)]
    rejected = capture(path, port, [PROMPT, (DOWN, prefixed(b"\xff\xfe", b"\0\1\2"))])
    assert found(rejected) == ([("likely", 2, False)] if port == 4433 else [])


def test_an_answer_of_nothing(tmp_path):
    end = (DOWN, records.encode_end(0, 3))
    assert found(capture(tmp_path / "a.pcap", 8000, [PROMPT, end])) == [("certain", 0, True)]
