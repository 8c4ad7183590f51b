"""Profile files: units, sources, and for everything that is wrong one line with its line number."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from scenarios import wifi_loss
from topologies import profile_file
from topologies.channel import (
    Bernoulli,
    Blackouts,
    Bottleneck,
    Combined,
    DropList,
    FateList,
    Gaps,
    GilbertElliott,
    GilbertElliottPackets,
    LossTrace,
    ParetoOutages,
)
from topologies.profile import Direction, LinkProfile, ProfileError, Rebind
from topologies.toml_lines import key_lines

GOOD = """\
title = "A link for tests"
mtu = 1280
source = "the file"

[both.delay]
one_way = "20 ms"
jitter = "2 ms"
source = "a watch"

[down.loss]
model = "gilbert-elliott-time"
mean_good = 1.8  # seconds
mean_bad = "200 ms"
source = "a paper"

[down.bottleneck]
rate = "10 Mbit/s"
queue = "25 packets"
source = "a contract"

[up.bottleneck]
rate = 2e6
queue = "64 kB"
discipline = "codel"
source = "a contract"

[both.faults]
corrupt = "0.1 %"

[rebind]
at = "1 s"
every = "5 s"
source = "a router"
"""


def write(folder: Path, text: str, name: str = "link.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_whole_file(tmp_path: Path) -> None:
    assert profile_file.load(write(tmp_path, GOOD)) == LinkProfile(
        name="link",
        up=Direction(
            0.02,
            0.002,
            bottleneck=Bottleneck(2e6, queue_bytes=64_000, discipline="codel"),
            corrupt=0.001,
        ),
        down=Direction(
            0.02,
            0.002,
            loss=GilbertElliott(1.8, 0.2),
            bottleneck=Bottleneck(1e7, queue_packets=25),
            corrupt=0.001,
        ),
        source="delay: a watch; down loss: a paper; bottleneck: a contract; "
        "faults, mtu: the file; rebind: a router",
        mtu=1280,
        rebind=Rebind(1.0, 5.0),
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ('"18 ms"', 0.018),
        ('"18ms"', 0.018),
        ('"250 us"', 0.00025),
        ('"250 µs"', 0.00025),
        ('"1.5 s"', 1.5),
        ('".5 min"', 30.0),
        ('"2e1 ms"', 0.02),
        ("0.018", 0.018),
        ("1", 1),
    ],
)
def test_times(tmp_path: Path, text: str, seconds: float) -> None:
    path = write(tmp_path, f'delay = {text}\nsource = "s"')
    assert profile_file.load(path).up == Direction(seconds)


@pytest.mark.parametrize(
    ("rate", "queue", "model"),
    [
        ('"1.5 kbit/s"', '"1 packet"', Bottleneck(1500, queue_packets=1)),
        ('"1 Gbit/s"', '"2 MiB"', Bottleneck(1e9, queue_bytes=2 * 1024 * 1024)),
        ('"9600 bit/s"', '"64 KiB"', Bottleneck(9600, queue_bytes=65536)),
        ("1e6", '"1 MB"', Bottleneck(1e6, queue_bytes=1_000_000)),
    ],
)
def test_rates_and_queues(tmp_path: Path, rate: str, queue: str, model: Bottleneck) -> None:
    path = write(tmp_path, f'source = "s"\n[bottleneck]\nrate = {rate}\nqueue = {queue}\n')
    assert profile_file.load_direction(path) == Direction(bottleneck=model)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ('loss = "2 %"', Bernoulli(0.02)),
        ("loss = 0.02", Bernoulli(0.02)),
        ('loss = {loss = "2 %"}', Bernoulli(0.02)),
        ('loss = {model = "blackouts", on = "5 s", off = "2 s"}', Blackouts(5, 2)),
        (
            'loss = {model = "gaps", spells = [["1 s", "1500 ms"], [3, 4]]}',
            Gaps(((1, 1.5), (3, 4))),
        ),
        ('loss = {model = "drop-list", packets = [1, 7]}', DropList((1, 7))),
        ('loss = {model = "fate-list", fates = ".x x"}', FateList((False, True, True))),
        ('loss = {model = "fate-list", fates = [true, false]}', FateList((True, False))),
        (
            'loss = {model = "gilbert-elliott-packets", p = "1 %", r = 0.5}',
            GilbertElliottPackets(0.01, 0.5),
        ),
        (  # 3 outages a minute of 2 s: 18 s good between them
            'loss = {model = "pareto-outages", mean_bad = 2, bad_per_minute = 3, shape = 2.5}',
            ParetoOutages(18, 2, 2.5),
        ),
        (  # half of the time: as long good as bad
            'loss = {model = "gilbert-elliott-time", mean_bad = "100 ms", mean_loss = "50 %"}',
            GilbertElliott(0.1, 0.1),
        ),
        (
            '[[loss]]\nloss = "1 %"\n[[loss]]\nmodel = "blackouts"\non = 5\noff = 2',
            Combined((Bernoulli(0.01), Blackouts(5, 2))),
        ),
    ],
)
def test_losses(tmp_path: Path, text: str, model: object) -> None:
    path = write(tmp_path, f'source = "s"\n{text}\n')
    assert profile_file.load_direction(path).loss == model


def test_sources_of_combined_losses_are_all_told(tmp_path: Path) -> None:
    parts = '[[both.loss]]\nloss = 0.1\nsource = "a"\n[[both.loss]]\nloss = 0.2\nsource = "b"\n'
    assert profile_file.load(write(tmp_path, parts)).source == "a; b"


def test_files_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, "time,state\n0,up\n9,down\n10,end\n", "states.csv")
    write(tmp_path, "0,0.01\n1,0.03\n", "delays.csv")
    write(tmp_path, "1\n2\n2\n4\n", "chances")
    write(
        tmp_path,
        'source = "s"\nloss = {model = "loss-trace", file = "../states.csv"}\n'
        'delay = {trace = "../delays.csv"}\n'
        '[bottleneck]\ntrace = "../chances"\nqueue = "9 packets"\n',
        "sub/radio.toml",
    )
    link = profile_file.load(write(tmp_path, 'up = "sub/radio.toml"\ndown = {}\n'))
    assert isinstance(link.up.loss, LossTrace)
    assert link.up.mean_loss == pytest.approx(0.1)
    assert link.up.mean_delay == pytest.approx(0.02)
    assert link.up.bottleneck is not None
    assert link.up.bottleneck.mean_rate == pytest.approx(8 * 1504 * 4 / 0.004)
    assert link.down == Direction()
    assert Path(link.up.loss.file).is_absolute()


def test_one_direction_alone_is_a_link_that_is_the_same_both_ways(tmp_path: Path) -> None:
    link = profile_file.load(write(tmp_path, 'delay = "20 ms"\nsource = "s"\nname = "both"\n'))
    assert link == LinkProfile("both", Direction(0.02), Direction(0.02), "s")


def test_a_direction_replaces_groups_of_both(tmp_path: Path) -> None:
    text = (
        'source = "s"\n[both]\ndelay = 0.02\nloss = 0.1\n[up.delay]\none_way = 0.05\nsource = "t"'
    )
    link = profile_file.load(write(tmp_path, text))
    assert link.up == Direction(0.05, loss=Bernoulli(0.1))
    assert link.down == Direction(0.02, loss=Bernoulli(0.1))
    assert link.source == "up delay: t; down delay, loss: s"


@pytest.mark.parametrize(
    ("line", "text", "words"),
    [
        (2, '[both.delay]\none_way = "-20 ms"\nsource = "s"', "delay must be a number at least 0"),
        (3, '\n[both.loss]\nloss = "130 %"\nsource = "s"', "loss must be a number from 0 to 1"),
        (
            2,
            'source = "s"\ndelay = "20 sec"',
            "one_way has an unknown unit, 'sec'; known are s, ms",
        ),
        (2, 'source = "s"\ndelay = "20"', "one_way has no unit: '20'"),
        (2, 'source = "s"\ndelay = "fast"', 'must be a number or a text such as "20 ms"'),
        (2, 'source = "s"\ndelay = true', 'must be a number or a text such as "20 ms"'),
        (1, 'loss = "2 %"', "loss has no source"),
        (2, "\n[both.delay]\none_way = 1", "both.delay has no source"),
        (3, '[both.delay]\none_way = 1\nsource = ""', "source must be a text that is not empty"),
        (3, '[both.delay]\none_way = 1\nlatency = 2\nsource = "s"', "unknown key 'latency'"),
        (
            2,
            'source = "s"\n[sideways.delay]\none_way = 1',
            "unknown key 'sideways'; known are name",
        ),
        (3, 'source = "s"\n[up]\nspeed = 1', "unknown key 'speed'; known are source, delay"),
        (2, 'source = "s"\nup = 3', "up must be a table or the name of a file, not 3"),
        (2, 'source = "s"\nup = "no.toml"', "up: there is no file"),
        (
            3,
            '[both.delay]\none_way = "5 ms"\njitter = "6 ms"\nsource = "s"',
            "jitter (0.006 s) must not exceed delay (0.005 s)",
        ),
        (3, 'source = "s"\n[delay]\nclamp = "no"\none_way = 1', "clamp must be true or false"),
        (4, 'source = "s"\n[delay]\none_way = 1\ndistribution = "flat"', "distribution must be"),
        (3, 'source = "s"\n[loss]\nmodel = "rain"', "unknown loss model 'rain'; known are bern"),
        (2, 'source = "s"\n[loss]\nmodel = "blackouts"\non = 1', "off is missing"),
        (
            2,
            'source = "s"\n[loss]\nmodel = "gilbert-elliott-time"\nmean_bad = 1',
            "mean_good (or mean_loss or bad_per_minute) is missing",
        ),
        (
            4,
            'source = "s"\n[loss]\nmodel = "gilbert-elliott-time"\nmean_bad = 0\nmean_good = 1',
            "mean_bad must be a number at least 0.001",
        ),
        (
            5,
            'source = "s"\n[loss]\nmodel = "gilbert-elliott-time"\nmean_bad = 1\nmean_loss = 1.3',
            "mean_loss must be between 0 and 1, not 1.3",
        ),
        (
            6,
            'source = "s"\n[loss]\nmodel = "gilbert-elliott-time"\nmean_bad = 1\nmean_good = 1\n'
            "mean_loss = 0.5",
            "mean_good and mean_loss exclude each other",
        ),
        (
            5,
            'source = "s"\n[loss]\nmodel = "gilbert-elliott-time"\nmean_bad = 2\n'
            "bad_per_minute = 30",
            "bad_per_minute must be between 0 and",
        ),
        (
            6,
            'source = "s"\n[[both.loss]]\nloss = 0.1\n[[both.loss]]\n# the second\nloss = 7',
            "both.loss.1: loss must be a number from 0 to 1, not 7",
        ),
        (3, 'source = "s"\n[bottleneck]\nrate = "10 mph"\nqueue = "9 packets"', "unit, 'mph'"),
        (4, 'source = "s"\n[bottleneck]\nrate = 1e6\nqueue = 25', "queue must say its unit"),
        (4, 'source = "s"\n[bottleneck]\nrate = 1e6\nqueue = "1.5 packets"', "whole number"),
        (
            4,
            'source = "s"\n[bottleneck]\nrate = 1e6\nqueue = "9 B"',
            "queue_bytes must be a number",
        ),
        (2, 'source = "s"\n[bottleneck]\nqueue = "9 packets"', "a rate or a delivery trace"),
        (2, 'source = "s"\nbottleneck = "1 Mbit/s"', "bottleneck must be a table"),
        (3, 'source = "s"\n[faults]\ncorrupt = "101 %"', "corrupt must be a number from 0 to 1"),
        (2, 'source = "s"\nmtu = 20\n[both]', "mtu must be a whole number from 68"),
        (3, 'source = "s"\n[rebind]\nat = "-1 s"', "at must be a number at least 0"),
        (2, 'source = "s"\n[rebind]\nevery = 1', "at is missing"),
        (1, "[both]", "there is no source"),
        (3, 'source = "s"\n\ndelay = = 1', "this is no TOML: Invalid value"),
        (3, 'source = "s"\n[a]\nb = [1,', "this is no TOML"),
        (2, 'source = "s"\nsource = "t"', "this is no TOML: Cannot overwrite a value"),
    ],
)
def test_a_broken_file_is_one_line_with_its_number(
    tmp_path: Path, line: int, text: str, words: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ProfileError) as caught:
        profile_file.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: "), message
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        ("", "the trace is empty"),
        ("# nothing\n\n", "the trace is empty"),
        ("0,up\n2,down\n1,end\n", "trace.csv:3: time goes back"),
        ("0,up\n2,sideways\n", "trace.csv:2: a state is up, down or end"),
        (None, "trace.csv: No such file"),
    ],
)
def test_a_broken_trace_names_both_files(tmp_path: Path, trace: str | None, words: str) -> None:
    if trace is not None:
        write(tmp_path, trace, "trace.csv")
    path = write(tmp_path, '[both.loss]\nmodel = "loss-trace"\nfile = "trace.csv"\nsource = "s"\n')
    with pytest.raises(ProfileError) as caught:
        profile_file.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:3: both.loss: "), message
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("group", "key", "trace", "words"),
    [
        ("delay", "", "0,0.1\n0,0.2\n", "trace.csv:2: time goes back"),
        ("delay", "", "0,-1\n1,0\n", "trace.csv:1: delay must be a number of at least 0"),
        ("bottleneck", 'queue = "9 packets"\n', "5\n4\n", "trace.csv:2: time goes back"),
        ("bottleneck", 'queue = "9 packets"\n', "", "the trace is empty"),
    ],
)
def test_broken_traces_of_delay_and_delivery(
    tmp_path: Path, group: str, key: str, trace: str, words: str
) -> None:
    write(tmp_path, trace, "trace.csv")
    path = write(tmp_path, f'source = "s"\n[{group}]\ntrace = "trace.csv"\n{key}')
    with pytest.raises(ProfileError) as caught:
        profile_file.load(path)
    assert str(caught.value).startswith(f"{path}:3: {group}: ")
    assert words in str(caught.value)


def test_an_error_in_an_included_file_names_that_file(tmp_path: Path) -> None:
    radio = write(tmp_path, '\nsource = "s"\ndelay = -1\n', "radio.toml")
    with pytest.raises(ProfileError) as caught:
        profile_file.load(write(tmp_path, 'up = "radio.toml"\ndown = "radio.toml"\n'))
    assert str(caught.value).startswith(f"{radio}:3: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"cannot read .*none\.toml: No such file"):
        profile_file.load(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'title = "caf\xe9"')
    with pytest.raises(ProfileError, match="it is no text in UTF-8"):
        profile_file.load(tmp_path / "latin.toml")
    with pytest.raises(ProfileError, match="no link profile 'xyzzy': use 3g, "):
        profile_file.find("xyzzy")
    with pytest.raises(ProfileError, match="no link profile 'wify': did you mean 'wifi'"):
        profile_file.find("wify")
    with pytest.raises(ProfileError, match="no link profile 'xyzzy'; known are 3g, "):
        profile_file.named("xyzzy")


def test_lines_of_keys_in_awkward_toml() -> None:
    text = '''# comment [not.a.table]
a = """
b = 1
"""   # "
c = [
  "]", # ]
  [1, 2],
]
"d e".f = 'x # y'

[ g . "h" ]
i = {j = 1, k = [2]}
[[l]]
m = 1
[l.n]
o = 2
[[l]]
m = 3
'''
    lines = key_lines(text)
    assert {keys: lines[keys] for keys in lines if len(keys) == 1} == {
        ("a",): 2,
        ("c",): 5,
        ("d e",): 9,
        ("g",): 11,
        ("l",): 13,
    }
    assert lines["d e", "f"] == 9
    assert lines["g", "h", "i"] == 12
    assert (lines["l", 0, "m"], lines["l", 0, "n", "o"], lines["l", 1, "m"]) == (14, 16, 18)
    assert key_lines("") == {}


# The named profiles. Expected values: what the sources say.

#: name: (one way in ms, loss up and down, mean outage in ms)
SAID = {
    "clean": (0, 0, 0),
    "wired": (18, 0, 0),
    "wifi": (3, 0.10, 100),
    "cell": (85 / 2 - 18, 0, 0),
    "lte-walking": (85 / 2 - 18, 0.13, 100),
    # gaps a minute times their mean length
    "lte-driving-verizon": (85 / 2 - 18, 2.1 * 0.466 / 60, 466),
    "lte-driving-att": (85 / 2 - 18, 5.3 * 0.650 / 60, 650),
    "lte-driving-tmobile": (85 / 2 - 18, 10.1 * 0.425 / 60, 425),
    "3g": (80 / 2 - 18, 10.7 * 0.737 / 60, 737),
    # p / (p + r), 200 ms / r
    "starlink-driving": (44 / 2 - 18, 0.0090 / (0.0090 + 0.602), 200 / 0.602),
    "lte-probes-att": (84 / 2 - 18, 0.0014 / (0.0014 + 0.190), 200 / 0.190),
    "lte-probes-verizon": (56 / 2 - 18, 0.0007 / (0.0007 + 0.150), 200 / 0.150),
    "mesh-vpn": (20, 0.05, 4.9 * 40),
    # 150 of each 600 m, at 160 km/h
    "train": (85 / 2 - 18, 150 / 600, 1e3 * 150 / (160 / 3.6)),
    "satellite-geo": (253, 0.01, 300),
    "interop-loss-2": (15, 0.02, 0),
    # a limit of three in a row: q + q^2 + q^3 lost for each one that is not
    "interop-loss-30": (15, 0.417 / 1.417, 0),
    "interop-blackhole": (15, 2 / 7, 2000),
    "interop-rebind": (15, 0, 0),
}


def test_all_named_profiles_are_known_here() -> None:
    assert set(profile_file.names()) == set(SAID)


@pytest.mark.parametrize("name", sorted(SAID))
def test_a_named_profile_does_what_its_source_says(name: str) -> None:
    one_way, loss, outage = SAID[name]
    profile = profile_file.named(name)
    assert profile.name == name
    assert profile.source.strip()
    assert profile_file.title(name)
    for direction in (profile.up, profile.down):
        assert 1e3 * direction.delay == pytest.approx(one_way, abs=0.01)
        assert direction.mean_loss == pytest.approx(loss, rel=0.01, abs=1e-6)
        mean_outage = direction.loss.mean_outage if direction.loss else 0
        assert 1e3 * mean_outage == pytest.approx(outage, rel=0.01)
    # It is what the link process gets, and what goes into a manifest.
    assert LinkProfile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile


def test_losses_lie_where_the_measurements_were() -> None:
    def loss(name: str) -> float:
        return profile_file.named(name).down.mean_loss

    assert 0.105 <= loss("lte-walking") <= 0.158
    assert loss("starlink-driving") == pytest.approx(0.0147, abs=5e-5)  # without long outages
    assert 0.0066 <= loss("lte-probes-att") <= 0.0160
    assert 0.0034 <= loss("lte-probes-verizon") <= 0.0048


def test_every_group_names_its_source_itself() -> None:
    for name in profile_file.names():
        text = (profile_file.FOLDER / f"{name}.toml").read_text()
        headers = [line for line in text.splitlines() if line.startswith("[")]
        sources = [line for line in text.splitlines() if line.startswith("source =")]
        assert len(sources) == max(1, len(headers)), name


def test_wifi_is_that_of_the_scenario() -> None:
    network = wifi_loss.network()
    wifi, wired = profile_file.named("wifi"), profile_file.named("wired")
    assert (wifi.up, wifi.down) == (network.access.up, network.access.down)
    assert (wired.up, wired.down) == (network.server.up, network.server.down)


def test_rates_of_the_interop_cases_and_of_mobile_networks() -> None:
    for name in profile_file.names():
        if name.startswith("interop"):
            neck = Bottleneck(1e7, queue_packets=25)
            assert profile_file.named(name).up.bottleneck == neck
            assert profile_file.named(name).down.bottleneck == neck
    rates = {"lte-walking": (10.6e6, 27e6), "3g": (2.7e6, 13e6)}
    for name, (up, down) in rates.items():
        profile = profile_file.named(name)
        assert profile.up.bottleneck and profile.up.bottleneck.rate == up
        assert profile.down.bottleneck and profile.down.bottleneck.rate == down


def test_interop_bursts_have_at_most_3_losses() -> None:
    profile = profile_file.named("interop-loss-30")
    for direction in (profile.up, profile.down):
        assert isinstance(direction.loss, FateList)
        twice = direction.loss.fates * 2  # it starts again at its end
        bursts = [len(list(run)) for lost, run in itertools.groupby(twice) if lost]
        assert max(bursts) == 3
        # q, q^2, q^3 of the deliveries are followed by at least 1, 2, 3 losses
        delivered = twice.count(False)
        for length, share in ((1, 0.3), (2, 0.09), (3, 0.027)):
            found = sum(burst >= length for burst in bursts) / delivered
            assert found == pytest.approx(share, abs=0.03)
    assert profile.up.loss != profile.down.loss


def test_interop_rebinding() -> None:
    assert profile_file.named("interop-rebind").rebind == Rebind(1.0, 5.0)
