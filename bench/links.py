"""What joins the hosts of hosts.py: a pair of virtual interfaces for each, its limits, and the bridges.

A link without delay:  eth0 (host) === wire (switch, a port of the bridge)
A link with delay:     eth0 (host) === wire --> hold --> delay_relay --> port (of the bridge)
                                       wire <---------------------------- port

Only what a host sends is held back, so that a packet passes through user space once on its way.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "peers"
INTERFACE = "eth0"

# TCP hands over up to 64 KiB as one packet, which the limits below have to let pass as a whole. Half of that
# costs the cores little more; a quarter is too much work for two of them when four hosts send at once.
LARGEST = 32 << 10
# Timers come late where others use the cores. What a link has missed it may send afterwards, up to this many
# seconds' worth, though only a quarter faster, so that a short message is not sent as if there was no limit.
BURST, PEAK = 1e-3, 1.25
SWITCH_QUEUE = 1 << 20  # bytes; what a switch holds for a port before it drops
HOST_QUEUE = 4 << 20  # TCP limits itself, so that here nothing is dropped
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
    """What the hosts have as /etc/hosts; always the same, so that it may stay."""
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
    """Of a rate as tc has it."""
    unit = next((unit for unit in UNITS if rate.endswith(unit)), None)
    if unit is None:
        raise ValueError(f"a rate ends in {', '.join(UNITS)}: {rate!r}")
    return float(rate[: -len(unit)]) * UNITS[unit]


def limit(device: str, rate: str | None, queue: int) -> str:
    """The command that limits what a device sends."""
    if rate is None:
        return ""
    bits = bits_per_second(rate)
    burst = max(4 * LARGEST, int(bits / 8 * BURST))
    peak = f"peakrate {PEAK * bits:.0f}bit mtu {max(LARGEST * 5 // 4, burst // 4)}"
    return f"tc qdisc add dev {device} root tbf rate {rate} burst {burst} limit {queue} {peak}"


def steering(device: str, index: int) -> str:
    """Has one core receive what comes to a device: several would change the packets' order."""
    queue = f"/sys/class/net/{device}/queues/rx-0/rps_cpus"
    return f"if [ -e {queue} ]; then echo {1 << index % min(os.cpu_count() or 1, 32):x} > {queue}; fi"


def bridge(site: int) -> str:
    return f"bridge{site}"


def switch_script(sites: int, trunk: str | None) -> str:
    """A bridge for each site, in a row, with a trunk from each to the next."""
    lines = []
    for site in range(sites):
        # A bridge that listens for other bridges' packets first would be silent for half a minute.
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
    """Between the host ``index`` and the bridge; the namespaces of both must be there."""

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
            # Otherwise an address must not be used for a second, until nobody else is sure to have it.
            f"ip address add {address6(self._index)}/64 dev {INTERFACE} nodad noprefixroute",
            # What a cluster has, whatever this machine's default. Connections do not learn from earlier ones.
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


def start_relay(switch: str, links: int, delay_ms: float) -> subprocess.Popen[str]:
    """Makes the interfaces hold0, port0, hold1 and so on, and passes on what comes to the former."""
    command = [str(_compiled_relay()), str(links), str(round(delay_ms * 1000))]
    relay = subprocess.Popen(
        ["ip", "netns", "exec", switch, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert relay.stdout is not None
    if relay.stdout.readline() != "ready\n":
        raise OSError(f"the relay: {relay.communicate()[1].strip()}")
    return relay


def _compiled_relay() -> Path:
    source, program = ROOT / "bench" / "peers" / "delay_relay.c", BUILD / "delay_relay"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        mine = program.with_name(f"delay_relay.{os.getpid()}")  # several may compile it at once
        command = ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", str(source), "-o", str(mine)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise OSError(done.stderr)
        os.replace(mine, program)
    return program
