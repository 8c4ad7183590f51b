"""Channel models: is a frame lost, when does it arrive, in which order? Seeded, without I/O.

A model is split in two. The *specification* (frozen data, closed forms) says what is meant; the
*process* made from it carries the random streams. A `Channel` is one direction of a link: a
bottleneck, then losses, then a delay, and the moment at which the channel's clock starts.

Models *in time* make runs paired: with one seed every sender meets the same bad moments, whatever
it sends and when. A model that changes state per packet (netem's gemodel) keeps a sender that
backs off in the bad state; its outages depend on who is asking.

The same objects serve the user-space link, netem's schedule, the simulator, the check of the links
and the shading in the pictures. All times are float seconds.
"""

from .bottleneck import Bottleneck, DeliveryTrace
from .channel import Channel, Fate
from .delay import DelayModel, DelayProcess, DelayTrace
from .in_time import Blackouts, Gaps, GilbertElliott, ParetoOutages
from .loss import DIRECTIONS, Bernoulli, LossModel, LossProcess
from .loss_models import LOSS_MODELS, bursts, loss_from_dict, loss_to_dict
from .loss_trace import LossTrace
from .per_packet import Combined, DropList, FateList, GilbertElliottPackets
from .randomness import ChannelError, Stream, check_number, subseed

__all__ = [
    "DIRECTIONS",
    "LOSS_MODELS",
    "Bernoulli",
    "Blackouts",
    "Bottleneck",
    "Channel",
    "ChannelError",
    "Combined",
    "DelayModel",
    "DelayProcess",
    "DelayTrace",
    "DeliveryTrace",
    "DropList",
    "Fate",
    "FateList",
    "Gaps",
    "GilbertElliott",
    "GilbertElliottPackets",
    "LossModel",
    "LossProcess",
    "LossTrace",
    "ParetoOutages",
    "Stream",
    "bursts",
    "check_number",
    "loss_from_dict",
    "loss_to_dict",
    "subseed",
]
