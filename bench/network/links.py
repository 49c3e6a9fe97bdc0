"""The links between the hosts of hosts.py: a pair of virtual interfaces for each, its limits, and the bridges.

A link without delay:  eth0 (host) === wire (switch, a port of the bridge)
A link with delay:     eth0 (host) === wire --> hold --> delay_relay --> port (of the bridge)
                                       wire <---------------------------- port

Only packets that a host sends are held back, so that each packet passes through user space only once.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "peers"
INTERFACE = "eth0"

# TCP passes on up to 64 KiB as one packet, which the limits below must let pass as a whole. Half of that costs the
# cores little more. A quarter is too much work for two cores when four hosts send at once.
LARGEST = 32 << 10
# Timers fire late if other programs use the cores. A link may then send what it has missed, up to this many seconds'
# worth, but only a quarter faster, so that short messages are still limited.
BURST, PEAK = 1e-3, 1.25
SWITCH_QUEUE = 1 << 20  # bytes that a switch holds for a port before it drops packets
HOST_QUEUE = 4 << 20  # large enough that nothing is dropped, because TCP limits itself
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def address(index: int) -> str:
    return f"10.0.0.{index + 1}"


def address6(index: int) -> str:
    return f"fd00::{index + 1:x}"


def script(namespace: str, text: str) -> None:
    """Runs a shell script in a namespace."""
    command = ["ip", "netns", "exec", namespace, "sh", "-e"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise OSError(f"{namespace}: {done.stderr.strip()}")


def hosts_file(number: int) -> Path:
    """Returns the file that the hosts use as /etc/hosts. It is always the same, so it need not be removed."""
    names = [f"{address(i)} host{i}\n{address6(i)} host{i}\n" for i in range(number)]
    text = "".join(["127.0.0.1 localhost\n::1 localhost\n", *names])
    path = BUILD / "hosts"
    if not path.exists() or path.read_text() != text:
        BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=BUILD, delete=False) as file:
            file.write(text)
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    return path


def bits_per_second(rate: str) -> float:
    """Converts a rate in tc's notation to bits per second."""
    unit = next((unit for unit in UNITS if rate.endswith(unit)), None)
    if unit is None:
        raise ValueError(f"a rate must end in {', '.join(UNITS)}, not {rate!r}")
    return float(rate[: -len(unit)]) * UNITS[unit]


def limit(device: str, rate: str | None, queue: int) -> str:
    """Returns the command that limits the rate at which a device sends."""
    if rate is None:
        return ""
    bits = bits_per_second(rate)
    burst = max(4 * LARGEST, int(bits / 8 * BURST))
    peak = f"peakrate {PEAK * bits:.0f}bit mtu {max(LARGEST * 5 // 4, burst // 4)}"
    return f"tc qdisc add dev {device} root tbf rate {rate} burst {burst} limit {queue} {peak}"


def steering(device: str, index: int) -> str:
    """Returns the command that makes one core receive all packets of a device. Several would reorder the packets."""
    queue = f"/sys/class/net/{device}/queues/rx-0/rps_cpus"
    return f"if [ -e {queue} ]; then echo {1 << index % min(os.cpu_count() or 1, 32):x} > {queue}; fi"


def bridge(site: int) -> str:
    return f"bridge{site}"


def switch_script(sites: int, trunk: str | None) -> str:
    """Returns the script that makes a bridge for each site, and a trunk from each site to the next."""
    lines = []
    for site in range(sites):
        # Without forward_delay 0, a bridge would first listen for other bridges for half a minute.
        lines += [
            f"ip link add name {bridge(site)} type bridge forward_delay 0 mcast_snooping 0",
            f"ip link set {bridge(site)} up",
        ]
        if site == 0:
            continue
        there, here = f"up{site}", f"down{site}"
        lines.append(f"ip link add {there} type veth peer name {here}")
        for end, owner in ((there, bridge(site - 1)), (here, bridge(site))):
            lines += [
                f"ip link set {end} master {owner}",
                f"ip link set {end} up gso_max_size {LARGEST}",
                limit(end, trunk, SWITCH_QUEUE),
            ]
    return "\n".join(lines)


class Link:
    """The link between host ``index`` and the bridge. The namespaces of both must exist."""

    def __init__(self, namespace: str, switch: str, index: int, delay_ms: float, site: int = 0) -> None:
        self.namespace, self._switch, self._index = namespace, switch, index
        self._wire, self._hold = f"wire{index}", f"hold{index}"
        self._delayed, self._bridge = delay_ms > 0, bridge(site)
        self._port = f"port{index}" if self._delayed else self._wire

    def build(self, rate: str | None) -> None:
        script(self._switch, self._switch_side(rate))
        script(self.namespace, self._host_side(rate))

    def _switch_side(self, rate: str | None) -> str:
        wire, port = self._wire, self._port
        lines = [
            f"ip link add {wire} type veth peer name {INTERFACE} netns {self.namespace}",
            f"ip link set {port} master {self._bridge}",
            f"ip link set {wire} up gso_max_size {LARGEST}",
            limit(wire, rate, SWITCH_QUEUE),
            steering(wire, self._index),
        ]
        if self._delayed:
            lines += [
                f"ip link set {self._hold} up txqueuelen 10000 gso_max_size {LARGEST}",
                f"ip link set {port} up gso_max_size {LARGEST}",
                _redirect(wire, "ingress", self._hold),
                _redirect(port, "egress", wire),
            ]
        return "\n".join(lines)

    def _host_side(self, rate: str | None) -> str:
        lines = [
            "ip link set lo up",
            f"ip link set {INTERFACE} up gso_max_size {LARGEST}",
            f"ip address add {address(self._index)}/24 dev {INTERFACE} noprefixroute",
            # Without nodad, the address cannot be used for a second, while duplicates are searched for.
            f"ip address add {address6(self._index)}/64 dev {INTERFACE} nodad noprefixroute",
            # cubic as on clusters, whatever this machine's default. Connections do not learn from earlier ones.
            f"ip route add 10.0.0.0/24 dev {INTERFACE} src {address(self._index)} congctl cubic",
            f"ip route add fd00::/64 dev {INTERFACE} congctl cubic",
            "echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save",
            limit(INTERFACE, rate, HOST_QUEUE),
            steering(INTERFACE, self._index),
        ]
        return "\n".join(lines)

    def forward(self, on: bool) -> None:
        script(self._switch, f"ip link set {self._port} {f'master {self._bridge}' if on else 'nomaster'}")

    def carry(self, on: bool) -> None:
        script(self._switch, f"ip link set {self._wire} {'up' if on else 'down'}")


def _redirect(device: str, direction: str, target: str) -> str:
    return (
        f"tc qdisc add dev {device} clsact\n"
        f"tc filter add dev {device} {direction} protocol all u32 match u32 0 0"
        f" action mirred egress redirect dev {target}"
    )


def start_relay(switch: str, links: int, delay_ms: float, one_lost_in: int) -> subprocess.Popen[str]:
    """Starts the relay, which makes the interfaces hold0, port0, hold1 and so on.

    It delays the packets between them, and loses one frame in ``one_lost_in`` (0: none).
    """
    command = [str(_compiled_relay()), str(links), str(round(delay_ms * 1000)), str(one_lost_in)]
    relay = subprocess.Popen(
        ["ip", "netns", "exec", switch, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert relay.stdout is not None
    if relay.stdout.readline() != "ready\n":
        raise OSError(f"the relay: {relay.communicate()[1].strip()}")
    return relay


def _compiled_relay() -> Path:
    source, program = ROOT / "bench" / "network" / "delay_relay.c", BUILD / "delay_relay"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        mine = program.with_name(f"delay_relay.{os.getpid()}")  # several processes may compile it at once
        command = ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", str(source), "-o", str(mine)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise OSError(done.stderr)
        os.replace(mine, program)
    return program
