"""What the frames that hold neither TCP nor UDP are called, for one line about them."""

from __future__ import annotations

from collections.abc import Mapping

from analysis.encapsulation import (
    COOKED,
    DAMAGED,
    FRAGMENT,
    GRE_CONTROL,
    IP,
    IP_PROTOCOL,
    IPV4,
    IPV6,
    LINK,
    LLC_SAP,
    OTHER,
    PPP_PROTOCOL,
    VXLAN_OTHER,
    WIFI,
)

_MOST_NAMED = 8

_WIFI = ("management", "control", "data", "extension", "data without content", "encrypted data")
_NAMES = {
    **dict.fromkeys((IP, IPV4, IPV6, DAMAGED), "damaged or cut headers"),
    FRAGMENT: "IP fragments",
    GRE_CONTROL: "GRE keepalives and acknowledgements",
    VXLAN_OTHER: "VXLAN of an unknown protocol",
    WIFI + 6: "802.11 fragments",
    WIFI + 7: "802.11 A-MSDU, several packets in one",
    **{WIFI + number: f"802.11 {name}" for number, name in enumerate(_WIFI)},
    # EtherTypes
    0x0806: "ARP",
    0x8035: "RARP",
    0x8137: "IPX",
    0x8863: "PPPoE discovery",
    0x88CC: "LLDP",
    0x888E: "802.1X",
    0x8809: "Ethernet slow protocols (LACP)",
    0x88F7: "PTP",
    0x88E5: "MACsec",
    0x88E1: "HomePlug",
    0x893A: "IEEE 1905",
    0x9000: "Ethernet loopback",
    0x8902: "802.1ag",
    0x894F: "NSH",
    0x22F3: "TRILL",
    0x8914: "FCoE setup",
    0x8906: "FCoE",
    0x88A2: "ATA over Ethernet",
    0x8892: "PROFINET",
    0x88A4: "EtherCAT",
    0x8915: "RoCE",
    0x0842: "Wake-on-LAN",
    0x2001: "NHRP",
    0x883E: "WCCP",
    0x8847: "MPLS",
    0x8864: "PPPoE",
    # PPP protocols
    PPP_PROTOCOL + 0x8021: "PPP IPCP",
    PPP_PROTOCOL + 0x8057: "PPP IPV6CP",
    PPP_PROTOCOL + 0xC021: "PPP LCP",
    PPP_PROTOCOL + 0xC023: "PPP PAP",
    PPP_PROTOCOL + 0xC223: "PPP CHAP",
    PPP_PROTOCOL + 0x80FD: "PPP CCP",
    PPP_PROTOCOL + 0xFD: "PPP with compressed content",
    PPP_PROTOCOL + 0x53: "PPP with encrypted content",
    PPP_PROTOCOL + 0x3D: "PPP multilink",
    PPP_PROTOCOL + 0x2D: "PPP with compressed TCP headers",
    PPP_PROTOCOL + 0x2F: "PPP with compressed TCP headers",
    # LLC service access points
    LLC_SAP + 0x42: "spanning tree",
    LLC_SAP + 0xFE: "IS-IS and other OSI",
    LLC_SAP + 0xE0: "IPX",
    LLC_SAP + 0xFF: "IPX",
    LLC_SAP + 0xF0: "NetBIOS",
    LLC_SAP + 0xAA: "SNAP of other organisations (CDP)",
    # IP protocols
    IP_PROTOCOL + 1: "ICMP",
    IP_PROTOCOL + 2: "IGMP",
    IP_PROTOCOL + 58: "ICMPv6",
    IP_PROTOCOL + 50: "ESP (IPsec)",
    IP_PROTOCOL + 89: "OSPF",
    IP_PROTOCOL + 88: "EIGRP",
    IP_PROTOCOL + 103: "PIM",
    IP_PROTOCOL + 112: "VRRP",
    IP_PROTOCOL + 132: "SCTP",
    IP_PROTOCOL + 115: "L2TPv3",
    IP_PROTOCOL + 136: "UDP-Lite",
    IP_PROTOCOL + 33: "DCCP",
    IP_PROTOCOL + 46: "RSVP",
    IP_PROTOCOL + 108: "IPComp",
    IP_PROTOCOL + 59: "empty IPv6",
    IP_PROTOCOL + 6: "damaged TCP headers",
    IP_PROTOCOL + 17: "damaged UDP headers",
    # Link types
    LINK + 186: "USB",
    LINK + 189: "USB",
    LINK + 220: "USB",
    LINK + 249: "USB",
    LINK + 187: "Bluetooth",
    LINK + 201: "Bluetooth",
    LINK + 251: "Bluetooth",
    LINK + 254: "Bluetooth",
    LINK + 272: "Bluetooth",
    LINK + 195: "802.15.4",
    LINK + 230: "802.15.4",
    LINK + 253: "netlink",
    LINK + 227: "CAN",
    LINK + 252: "upper PDUs",
    LINK + 247: "InfiniBand",
    LINK + 271: "vsock",
    LINK + 107: "Frame Relay",
}
_BASES = {
    PPP_PROTOCOL: "PPP protocol 0x{:04x}",
    LLC_SAP: "LLC 0x{:02x}",
    IP_PROTOCOL: "IP protocol {}",
    LINK: "link type {}",
    COOKED: "Linux protocol 0x{:04x}",
    WIFI: "802.11 of kind {}",
    OTHER: "kind {}",
}


def name(kind: int) -> str:
    """What `encapsulation` could not look into; kinds as there."""
    if kind in _NAMES:
        return _NAMES[kind]
    return _BASES.get(kind >> 16 << 16, "EtherType 0x{:04x}").format(kind & 0xFFFF)


def counted(kinds: Mapping[int, int]) -> str:
    """In words, most first: 84 frames of ARP, 3 of LLDP."""
    total: dict[str, int] = {}
    for kind, count in kinds.items():
        total[name(kind)] = total.get(name(kind), 0) + count
    if not total:
        return ""
    ordered = sorted(total.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{count} of {text}" for text, count in ordered[:_MOST_NAMED]]
    shown[0] = shown[0].replace(" of ", " frames of " if ordered[0][1] != 1 else " frame of ", 1)
    if len(ordered) > _MOST_NAMED:
        rest = sum(count for _, count in ordered[_MOST_NAMED:])
        shown.append(f"{rest} of {len(ordered) - _MOST_NAMED} other kinds")
    return ", ".join(shown)
