"""Files as people save them: marks, other encodings, line ends, junk, and numbers out of range."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from apps.timing.profile import load as load_timing
from apps.trace import TraceSource
from scenarios.prompt_sets import load as load_prompts
from topologies import text_file
from topologies.channel import DelayTrace, DeliveryTrace, trace_file
from topologies.channel.loss_trace import LossTrace
from topologies.profile_file import load as load_profile

PROFILE = 'source = "assumed"\ndelay = "20 ms"\n'
TIMING = 'title = "t"\nkind = "steady"\nsource = "s"\n'
TIMING += "".join(
    f'[parameters.{key}]\nvalue = {value}\nassumption = "a"\n'
    for key, value in (("first", 0.1), ("spacing", 0.05), ("per_step", 1))
)
ANSWER = '{"format": "eloquent-trace/1", "model": "m", "prompt": "p", "recorded": "r"}\n'
ANSWER += '[0.5, "6869"]\n{"end": "stop", "count": 1}\n'
#: Each kind of file: its name, a text, and what is read from it.
FILES: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "profile": ("a.toml", PROFILE, lambda path: load_profile(path).up.delay),
    "timing": ("b.toml", TIMING, lambda path: load_timing(str(path)).title),
    "answer": ("c.jsonl", ANSWER, lambda path: TraceSource(path).tokens),
    "prompts": ("d.txt", "why?\nhow?\n", lambda path: load_prompts(str(path)).prompts),
    "prompt set": ("e.toml", 'prompts = ["é"]\n', lambda path: load_prompts(str(path)).prompts),
    "mahimahi": ("f.trace", "1\n1\n12\n", lambda path: list(DeliveryTrace(str(path)).times)),
    "delays": ("g.csv", "time,delay\n0,0.1\n2,0.2\n", lambda path: DelayTrace(str(path)).delays),
    "losses": ("h.csv", "0,up\n2,down\n3,end\n", lambda path: LossTrace(str(path)).spells),
}
RIGHT = {
    "profile": 0.02,
    "timing": "t",
    "answer": ((0.5, b"hi"),),
    "prompts": ("why?", "how?"),
    "prompt set": ("é",),
    "mahimahi": [0.001, 0.001, 0.012],
    "delays": (0.1, 0.2),
    "losses": ((2.0, 3.0),),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_byte_order_mark_and_foreign_line_ends_are_read(kind: str, tmp_path: Path) -> None:
    name, text, read = FILES[kind]
    for saved in (text, "\ufeff" + text, text.replace("\n", "\r\n"), "\ufeff" + text.rstrip("\n")):
        (tmp_path / name).write_bytes(saved.encode())
        assert read(tmp_path / name) == RIGHT[kind]


@pytest.mark.parametrize("kind", FILES)
def test_what_is_no_text_in_utf8_is_one_line(kind: str, tmp_path: Path) -> None:
    name, text, read = FILES[kind]
    path = tmp_path / name
    broken = {
        codecs.BOM_UTF16_LE + text.encode("utf-16-le"): "UTF-16: save it as UTF-8",
        codecs.BOM_UTF16_BE + text.encode("utf-16-be"): "UTF-16: save it as UTF-8",
        codecs.BOM_UTF32_LE + text.encode("utf-32-le"): "UTF-32: save it as UTF-8",
        text.encode("utf-16-le"): "UTF-8",
        text.encode() + b"# caf\xe9\n": f"byte 0xe9 in line {text.count(chr(10)) + 1}",
        b"\x7fELF\x02\x01\x00\x00\xff" + os.urandom(200): "UTF-8",
        b"": "",
        b"\n\n": "",
    }
    for raw, said in broken.items():
        path.write_bytes(raw)
        with pytest.raises(ValueError) as error:  # noqa: PT011 - each reader has its own
            read(path)
        message = str(error.value)
        assert name in message
        assert said in message
        assert "\n" not in message
        assert type(error.value) is not ValueError  # an error of ours, for its command to tell


@pytest.mark.parametrize("kind", FILES)
def test_a_folder_and_a_file_that_is_not_there_are_one_line(kind: str, tmp_path: Path) -> None:
    name, _, read = FILES[kind]
    with pytest.raises(ValueError, match=f"{name}: No such file or directory"):
        read(tmp_path / name)
    (tmp_path / name).mkdir()
    if kind != "answer":  # a folder of answers is a source, but not this one
        with pytest.raises(ValueError, match=f"{name}: Is a directory"):
            read(tmp_path / name)


def test_names_and_sizes_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(text_file.TextFileError, match="NUL character in its name"):
        text_file.read(Path("a\0b"))
    monkeypatch.setattr(text_file, "MOST_BYTES", 3 << 20)
    with pytest.raises(text_file.TextFileError, match=r"larger than 0\.0 GB"):
        text_file.read(Path("/dev/zero"))


def test_only_newlines_end_lines(tmp_path: Path) -> None:
    # splitlines() would cut at each of these, and an editor at none.
    for mark in "\x85\u2028\u2029\x0b\x0c":
        (tmp_path / "p.txt").write_text(f"a{mark}b\nc\n", encoding="utf-8")
        assert load_prompts(str(tmp_path / "p.txt")).prompts == (f"a{mark}b", "c")
    header = json.loads(ANSWER.splitlines()[0]) | {"prompt": "a\u2028b"}
    lines = [json.dumps(header, ensure_ascii=False), *ANSWER.splitlines()[1:]]
    (tmp_path / "t.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert TraceSource(tmp_path / "t.jsonl").prompt == "a\u2028b"


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ('mtu = inf\nsource = "a"', 1, "mtu must be a finite number, not inf"),
        ('source = "a"\nmtu = nan', 2, "mtu must be a finite number, not nan"),
        ('source = "a"\nmtu = -inf', 2, "mtu must be a finite number, not -inf"),
        ('source = "a"\n[up.delay]\none_way = nan', 3, "up.delay.one_way must be a finite"),
        ('source = "a"\n[both]\nloss = inf', 3, "both.loss must be a finite"),
        ('source = "a"\n[rebind]\nat = inf', 3, "rebind.at must be a finite"),
        ('source = "a"\ndelay = "1e400 s"', 2, "out of range: '1e400 s'"),
        ('source = "a"\ndelay = "1e9999999999999999999 s"', 2, "out of range"),
        (f'source = "a"\ndelay = 1{"0" * 400}', 2, "out of range"),
        (f'source = "a"\nmtu = 1{"0" * 400}', 2, "out of range"),
        (f'source = "a"\nmtu = 1{"0" * 5000}', 1, "no TOML"),
        ('source = "a"\nmtu = "1e300 B"', 2, "mtu must be a whole number from 68"),
        ('source = "a"\ndelay = -1', 2, "must be a number at least 0"),
        ('source = "a\\u0000b"\ndelay = 1', 1, "source must not hold a NUL character: 'a\\x00b'"),
        ('source = "a"\nup = "b\\u0000.toml"', 2, "up must not hold a NUL character"),
        ("source = " + "[" * 5000, 1, "no TOML"),
    ],
)
def test_values_of_a_profile_that_cannot_be(
    text: str, place: int, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text + "\n")
    with pytest.raises(ValueError) as error:  # noqa: PT011
        load_profile(path)
    message = str(error.value)
    assert message.startswith(f"{path}:{place}: ")
    assert said in message
    assert "\n" not in message


NUMBERS = ("inf", "-inf", "nan", "-1", "1e308", "1" + "0" * 400, '"1e400 s"', "true", "[]", '""')
KEYS = {
    "delay": ("one_way", "jitter", "reorder", "distribution"),
    "bottleneck": ("rate", "queue", "discipline"),
    "faults": ("duplicate", "corrupt"),
    "loss": ("loss", "model"),
}


@pytest.mark.parametrize("group", KEYS)
def test_no_value_of_a_profile_ends_in_another_error(group: str, tmp_path: Path) -> None:
    whole = {
        "delay": {"one_way": '"20 ms"'},
        "bottleneck": {"rate": '"1 Mbit/s"', "queue": '"9 packets"'},
        "faults": {},
        "loss": {"loss": '"2 %"'},
    }[group]
    path, said = tmp_path / "a.toml", list[str]()
    for key in KEYS[group]:
        for number in NUMBERS:
            values = whole | {key: number}
            lines = [f"{name} = {value}" for name, value in values.items()]
            path.write_text("\n".join(['source = "a"', f"[{group}]", *lines, ""]))
            try:
                channel = load_profile(path).channel("up", "link")
            except ValueError as error:
                said.append(str(error))
            else:
                for n in range(20):
                    channel.fate(n / 10, 1514)
    assert len(said) > 5 * len(KEYS[group])
    assert [line for line in said if not line.startswith(f"{path}:") or "\n" in line] == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.txt", "a\nb\0c\n", r"p\.txt: .* NUL character in line 2"),
        ("p.toml", 'title = "t"\nprompts = ["a", "b\\u0000c"]\n', r"p\.toml:2: prompts\.1 .* NUL"),
    ],
)
def test_a_nul_in_a_prompt_names_the_line(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=said):
        load_prompts(str(tmp_path / name))


def test_a_long_mahimahi_trace_is_the_same_read_in_either_way(tmp_path: Path) -> None:
    count = 300_000
    numbers = [n // 3 for n in range(count)]
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.write_text("".join(f"{n}\n" for n in numbers))
    slow.write_text("# a comment\n" + fast.read_text())
    one, other = DeliveryTrace(str(fast)).times, DeliveryTrace(str(slow)).times
    assert list(one) == list(other) == [n / 1e3 for n in numbers]


def test_a_long_mahimahi_trace_names_the_line_at_fault(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text("1\n\n3\n\n2\n")
    with pytest.raises(ValueError, match=rf"{path}:5: time goes back, from 0\.003 to 0\.002 s"):
        DeliveryTrace(str(path))
    path.write_text(f"1\n{'9' * 400}\n")
    with pytest.raises(ValueError, match=f"{path}:2: time must be a number of at least 0"):
        DeliveryTrace(str(path))


def test_a_trace_that_is_too_long_is_refused_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "MOST_NUMBERS", 1000)
    path = tmp_path / "t"
    path.write_text("1\n" * 1001)
    with pytest.raises(ValueError, match="has 1,001 lines; at most 1,000 can be read"):
        DeliveryTrace(str(path))
    path.write_text("1\n" * 1000)
    assert len(DeliveryTrace(str(path)).times) == 1000
