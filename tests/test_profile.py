"""Profiles: JSON there and back, and one clear line for each thing that can be wrong."""

from __future__ import annotations

import copy
import json

import pytest

from topologies.channel import Bernoulli, GilbertElliott
from topologies.profile import Direction, LinkProfile, NetworkProfile, ProfileError

ACCESS = LinkProfile(
    name="walking",
    up=Direction(0.02, 0.002, GilbertElliott(1.8, 0.2)),
    down=Direction(0.025, loss=Bernoulli(0.01)),
    source="assumed",
)
NETWORK = NetworkProfile(
    access=ACCESS, server=LinkProfile("cable", Direction(), Direction(), "assumed")
)
JSON = """{
 "access": {"name": "walking", "source": "assumed",
  "up": {"delay": 0.02, "jitter": 0.002, "loss": {"model": "gilbert-elliott-time",
   "mean_good": 1.8, "mean_bad": 0.2, "loss_good": 0.0, "loss_bad": 1.0}},
  "down": {"delay": 0.025, "jitter": 0.0, "loss": {"model": "bernoulli", "loss": 0.01}}},
 "server": {"name": "cable", "source": "assumed",
  "up": {"delay": 0.0, "jitter": 0.0, "loss": null},
  "down": {"delay": 0.0, "jitter": 0.0, "loss": null}}}"""


def test_to_json():
    assert json.loads(json.dumps(NETWORK.to_dict())) == json.loads(JSON)


def test_from_json():
    assert NetworkProfile.from_dict(json.loads(JSON)) == NETWORK


def test_left_out_values_take_their_defaults():
    data = {"name": "x", "source": "y", "up": {}, "down": {"delay": 0.1}}
    profile = LinkProfile.from_dict(data)
    assert profile.up == Direction(0.0, 0.0, None)
    assert profile.down == Direction(0.1)
    loss = {"model": "gilbert-elliott-time", "mean_good": 1, "mean_bad": 1}
    assert Direction.from_dict({"loss": loss}).loss == GilbertElliott(1, 1, 0.0, 1.0)


def test_perfect_links():
    assert NETWORK.server.perfect
    assert not ACCESS.perfect
    assert not LinkProfile("x", Direction(0.001), Direction(), "y").perfect
    assert LinkProfile("x", Direction(loss=Bernoulli(0)), Direction(), "y").perfect


def test_mean_loss():
    assert ACCESS.up.mean_loss == pytest.approx(0.1)
    assert Direction().mean_loss == 0


def test_a_profile_makes_its_channels():
    up = ACCESS.channel("up", "access", seed=3)
    assert up.direction == "up"
    assert up.outages(0, 100) == ACCESS.channel("up", "access", seed=3).outages(0, 100)
    assert up.outages(0, 100) != ACCESS.channel("up", "access", seed=4).outages(0, 100)
    assert ACCESS.channel("down", "access").fate(1.0).due == pytest.approx(1.025)


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("access.up.delay", -0.01, "network.access.up: delay must be a number at least 0"),
        ("access.up.delay", "20ms", "network.access.up: delay must be a number at least 0"),
        ("access.up.jitter", 0.5, "network.access.up: jitter (0.5 s) must not exceed delay"),
        ("access.down.loss.loss", 1.3, "network.access.down.loss: loss must be a number from 0"),
        ("access.down.loss.model", "x", "network.access.down.loss: unknown loss model 'x'"),
        ("access.down.loss.mean_bad", 1, "network.access.down.loss: unknown key 'mean_bad'"),
        (
            "access.down.loss",
            0.1,
            'network.access.down.loss must be null or an object with "model"',
        ),
        ("access.up.latency", 1, "network.access.up: unknown key 'latency'; known are delay"),
        ("access.name", " ", "network.access: name of a link must be a text"),
        ("access.source", None, "network.access: source of a link must be a text"),
        ("server.up", 3, "network.server.up must be an object, not 3"),
        ("extra", 3, "network: unknown key 'extra'; known are access, server"),
    ],
)
def test_one_clear_line(path, value, line):
    data = copy.deepcopy(json.loads(JSON))
    *parents, last = path.split(".")
    place = data
    for key in parents:
        place = place[key]
    place[last] = value
    with pytest.raises(ProfileError) as caught:
        NetworkProfile.from_dict(data)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named():
    data = json.loads(JSON)
    del data["access"]["source"]
    with pytest.raises(ProfileError, match=r'network\.access: "source" is missing'):
        NetworkProfile.from_dict(data)
    with pytest.raises(ProfileError, match="delay must be"):
        Direction(delay=-1)
