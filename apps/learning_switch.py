"""The Ryu application: an OpenFlow 1.3 learning switch that also polls statistics.

Started by :mod:`apps.controller`, which must make eventlet and Ryu compatible before this module
is imported. Section numbers are those of the OpenFlow Switch Specification 1.3.5.
"""

from __future__ import annotations

import csv
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from ryu import cfg
from ryu.base.app_manager import RyuApp
from ryu.controller import ofp_event
from ryu.controller.handler import (
    CONFIG_DISPATCHER,
    DEAD_DISPATCHER,
    MAIN_DISPATCHER,
    set_ev_cls,
)
from ryu.lib import hub
from ryu.lib.mac import haddr_to_str
from ryu.ofproto import ofproto_v1_3

from apps.path_switch import MARK_MASK, Count, PathError, PathSwitch, Rule

cfg.CONF.register_cli_opts(
    [
        cfg.StrOpt("stats-file", default=None, help="CSV file for port and flow statistics"),
        cfg.FloatOpt("stats-interval", default=1.0, help="seconds between two polls"),
        cfg.StrOpt("control-socket", default=None, help="Unix socket for apps.path_switch"),
    ]
)

#: Columns of the statistics file; those that do not belong to the row's kind stay empty.
COLUMNS = (
    "time",  # seconds, CLOCK_MONOTONIC, when the reply arrived
    "datapath",
    "kind",  # port | flow
    "port",
    "name",
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_dropped",
    "tx_dropped",
    "rx_errors",
    "tx_errors",
    "priority",
    "in_port",
    "eth_src",
    "eth_dst",
    "out_port",
    "packets",
    "bytes",
    "duration",  # seconds that the flow has been installed
)
_ETHERTYPE_LLDP = b"\x88\xcc"
#: Seconds in which a switch must answer.
_PATIENCE = 5.0


class LearningSwitch(RyuApp):
    """Forwards frames by learned addresses and writes down what the switch counted.

    One flow for each pair of addresses and port, without timeouts: an entry that expires in the
    middle of a run would send packets through the controller and add its delay to theirs. The
    match holds the source as well, so that every new sender is seen, and learned, once.
    """

    OFP_VERSIONS = (ofproto_v1_3.OFP_VERSION,)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._switches: dict[int, Any] = {}
        self._ports_of: dict[int, dict[str, int]] = {}
        self._port_names: dict[tuple[int, int], str] = {}
        self._file = None
        if cfg.CONF.stats_file:
            self._file = open(cfg.CONF.stats_file, "w", newline="", encoding="utf-8")  # noqa: SIM115
            self._csv = csv.DictWriter(self._file, COLUMNS)
            self._csv.writeheader()
            self._file.flush()
            self._poller = hub.spawn(self._poll)
        self._answers: dict[tuple[int, int], Any] = {}
        self._counted: dict[tuple[int, int], list[Count]] = {}
        self._paths = PathSwitch(self)
        if cfg.CONF.control_socket:
            self._control = hub.spawn(self._listen, cfg.CONF.control_socket)

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def _features(self, event: Any) -> None:
        datapath = event.msg.datapath
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        # Table-miss entry (section 5.4): without it OpenFlow 1.3 drops what no flow matches.
        to_controller = parser.OFPActionOutput(ofproto.OFPP_CONTROLLER, ofproto.OFPCML_NO_BUFFER)
        self._add_flow(datapath, 0, parser.OFPMatch(), [to_controller])

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def _state(self, event: Any) -> None:
        datapath = event.datapath
        if event.state == MAIN_DISPATCHER:
            self._switches[datapath.id] = datapath
            self._ports_of[datapath.id] = {}
            datapath.send_msg(datapath.ofproto_parser.OFPPortDescStatsRequest(datapath, 0))
        elif self._switches.pop(datapath.id, None):
            for port in [port for port in self._port_names if port[0] == datapath.id]:
                del self._port_names[port]
            self._event("disconnected", datapath.id)

    @set_ev_cls(ofp_event.EventOFPPortDescStatsReply, MAIN_DISPATCHER)
    def _ports(self, event: Any) -> None:
        datapath = event.msg.datapath
        names = {port.port_no: port.name.decode(errors="replace") for port in event.msg.body}
        self._port_names.update({(datapath.id, port): name for port, name in names.items()})
        self._event("connected", datapath.id, ports=names)

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def _packet_in(self, event: Any) -> None:
        message = event.msg
        datapath = message.datapath
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        if len(message.data) < 14 or message.data[12:14] == _ETHERTYPE_LLDP:
            return
        destination = haddr_to_str(message.data[0:6])
        source = haddr_to_str(message.data[6:12])
        in_port = message.match["in_port"]
        known = self._ports_of.setdefault(datapath.id, {})
        if known.get(source, in_port) != in_port:
            self._forget(datapath, source)
        known[source] = in_port
        out_port = known.get(destination, ofproto.OFPP_FLOOD)
        actions = [parser.OFPActionOutput(out_port)]
        if out_port != ofproto.OFPP_FLOOD:
            match = parser.OFPMatch(in_port=in_port, eth_src=source, eth_dst=destination)
            self._add_flow(datapath, 1, match, actions)
        datapath.send_msg(
            parser.OFPPacketOut(
                datapath=datapath,
                buffer_id=ofproto.OFP_NO_BUFFER,
                in_port=in_port,
                actions=actions,
                data=message.data,
            )
        )

    def _add_flow(self, datapath: Any, priority: int, match: Any, actions: list[Any]) -> None:
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        apply = parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions)
        datapath.send_msg(
            parser.OFPFlowMod(
                datapath=datapath, priority=priority, match=match, instructions=[apply]
            )
        )

    def _forget(self, datapath: Any, address: str) -> None:
        """Delete the flows towards a host that has moved to another port."""
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        datapath.send_msg(
            parser.OFPFlowMod(
                datapath=datapath,
                command=ofproto.OFPFC_DELETE,
                out_port=ofproto.OFPP_ANY,
                out_group=ofproto.OFPG_ANY,
                match=parser.OFPMatch(eth_dst=address),
                cookie_mask=MARK_MASK,  # learned flows have cookie 0; paths are not for us
            )
        )

    def _poll(self) -> None:
        while True:
            for datapath in list(self._switches.values()):
                parser = datapath.ofproto_parser
                datapath.send_msg(
                    parser.OFPPortStatsRequest(datapath, 0, datapath.ofproto.OFPP_ANY)
                )
                datapath.send_msg(parser.OFPFlowStatsRequest(datapath))
            hub.sleep(cfg.CONF.stats_interval)

    @set_ev_cls(ofp_event.EventOFPPortStatsReply, MAIN_DISPATCHER)
    def _port_stats(self, event: Any) -> None:
        datapath = event.msg.datapath
        kinds = ("packets", "bytes", "dropped", "errors")
        same = [f"{way}_{kind}" for kind in kinds for way in ("rx", "tx")]
        rows = [
            {
                "port": stat.port_no,
                "name": self._port_names.get((datapath.id, stat.port_no), ""),
                **{column: getattr(stat, column) for column in same},
            }
            for stat in event.msg.body
        ]
        self._write(datapath, "port", rows)

    @set_ev_cls(ofp_event.EventOFPFlowStatsReply, MAIN_DISPATCHER)
    def _flow_stats(self, event: Any) -> None:
        if self._take_counts(event.msg):
            return
        rows = []
        for stat in event.msg.body:
            outputs = [
                str(action.port)
                for instruction in stat.instructions
                for action in getattr(instruction, "actions", [])
                if hasattr(action, "port")
            ]
            rows.append(
                {
                    "priority": stat.priority,
                    "in_port": stat.match.get("in_port", ""),
                    "eth_src": stat.match.get("eth_src", ""),
                    "eth_dst": stat.match.get("eth_dst", ""),
                    "out_port": " ".join(outputs),
                    "packets": stat.packet_count,
                    "bytes": stat.byte_count,
                    "duration": stat.duration_sec + stat.duration_nsec / 1e9,
                }
            )
        self._write(event.msg.datapath, "flow", rows)

    # -- for apps.path_switch --------------------------------------------------------------------

    def _listen(self, path: str) -> None:
        # eventlet's, so that waiting for a line does not stop the other green threads.
        import eventlet

        if os.path.exists(path):
            os.unlink(path)  # of a controller that was killed
        server = eventlet.listen(path, family=socket.AF_UNIX)
        while True:
            connection, _ = server.accept()
            hub.spawn(self._serve, connection)

    def _serve(self, connection: Any) -> None:
        try:
            with connection, connection.makefile("rw", encoding="utf-8") as lines:
                for line in lines:
                    answer = self._paths.handle(line)
                    self.logger.info("control %s -> %s", line.strip(), answer)
                    lines.write(json.dumps(answer) + "\n")
                    lines.flush()
        except (OSError, UnicodeDecodeError) as error:
            self.logger.warning("control connection ended: %s", error)

    def ports(self) -> Mapping[str, tuple[int, int]]:
        return {name: port for port, name in self._port_names.items()}

    def add(self, rule: Rule) -> None:
        datapath = self._connected(rule.datapath)
        parser, ofproto = datapath.ofproto_parser, datapath.ofproto
        actions = [] if rule.output is None else [parser.OFPActionOutput(rule.output)]
        datapath.send_msg(
            parser.OFPFlowMod(
                datapath=datapath,
                cookie=rule.cookie,
                priority=rule.priority,
                match=parser.OFPMatch(**rule.match),
                # Its last counters come with the word that it is gone (section 6.4).
                flags=ofproto.OFPFF_SEND_FLOW_REM,
                instructions=[parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions)],
            )
        )

    def remove(self, datapath: int, cookie: int, mask: int) -> None:
        switch = self._connected(datapath)
        parser, ofproto = switch.ofproto_parser, switch.ofproto
        switch.send_msg(
            parser.OFPFlowMod(
                datapath=switch,
                cookie=cookie,
                cookie_mask=mask,
                command=ofproto.OFPFC_DELETE,
                out_port=ofproto.OFPP_ANY,
                out_group=ofproto.OFPG_ANY,
                match=parser.OFPMatch(),
            )
        )

    def barrier(self, datapath: int) -> None:
        switch = self._connected(datapath)
        self._ask(switch, switch.ofproto_parser.OFPBarrierRequest(switch))

    def counts(self, datapath: int, cookie: int, mask: int) -> list[Count]:
        switch = self._connected(datapath)
        request = switch.ofproto_parser.OFPFlowStatsRequest(switch, cookie=cookie, cookie_mask=mask)
        found: list[Count] = self._ask(switch, request)
        return found

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        hub.spawn_after(seconds, function)

    def _connected(self, datapath: int) -> Any:
        if datapath not in self._switches:
            raise PathError(f"switch {datapath:016x} is not connected")
        return self._switches[datapath]

    def _ask(self, datapath: Any, request: Any) -> Any:
        """Send a request and wait for what the handler of its answer hands over."""
        datapath.set_xid(request)
        key = datapath.id, request.xid
        answer = self._answers[key] = hub.Queue()
        try:
            datapath.send_msg(request)
            return answer.get(timeout=_PATIENCE)
        except hub.QueueEmpty:
            raise PathError(f"switch {key[0]:016x} did not answer in {_PATIENCE:g} s") from None
        finally:
            del self._answers[key]
            self._counted.pop(key, None)

    @set_ev_cls(ofp_event.EventOFPBarrierReply, MAIN_DISPATCHER)
    def _barrier_reply(self, event: Any) -> None:
        answer = self._answers.get((event.msg.datapath.id, event.msg.xid))
        if answer is not None:
            answer.put(None)

    @set_ev_cls(ofp_event.EventOFPFlowRemoved, MAIN_DISPATCHER)
    def _flow_removed(self, event: Any) -> None:
        message = event.msg
        self._paths.removed(Count(message.cookie, message.packet_count, message.byte_count))

    def _take_counts(self, message: Any) -> bool:
        """Whether these statistics were asked for by ``counts``, not by the poll."""
        key = message.datapath.id, message.xid
        if key not in self._answers:
            return False
        counts = self._counted.setdefault(key, [])
        counts += [Count(s.cookie, s.packet_count, s.byte_count) for s in message.body]
        if not message.flags & message.datapath.ofproto.OFPMPF_REPLY_MORE:
            self._answers[key].put(counts)
        return True

    def _write(self, datapath: Any, kind: str, rows: list[dict[str, Any]]) -> None:
        if self._file is None:
            return
        base = {"time": f"{time.monotonic():.6f}", "datapath": f"{datapath.id:016x}", "kind": kind}
        self._csv.writerows(base | row for row in rows)
        # The process is ended by a signal: what is not on disk then is gone.
        self._file.flush()

    def _event(self, name: str, datapath: int, **more: Any) -> None:
        line = {"event": name, "datapath": f"{datapath:016x}", "time": time.monotonic(), **more}
        print(json.dumps(line), flush=True)
        self.logger.info("switch %016x %s", datapath, name)
