"""The hosts that options name, and the ssh command that reaches them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

__all__ = ["FREE_PORTS", "HostSlots", "addresses", "hosts_named", "ssh_words"]

FREE_PORTS = range(20_000, 32_000)  # below the ports that systems use for outgoing connections


@dataclass(frozen=True)
class HostSlots:
    """A host ("" is this one) and its number of ranks."""

    host: str
    ranks: int


def hosts_named(text: str, ranks: int | None) -> list[HostSlots]:
    """Parses "a,b", with ranks on each host, or "a:2,b:4".

    Raises:
        ValueError: a name or a number is missing.
    """
    places = []
    for item in text.split(","):
        host, colon, count = item.strip().rpartition(":") if ":" in item else (item.strip(), "", "")
        if not host or (colon and not (count.isdecimal() and int(count))):
            raise ValueError(f"--hosts: {item!r} is not a host; write a,b or a:2,b:4")
        if not colon and ranks is None:
            raise ValueError(
                f"--hosts: give the number of ranks on {host}, as {host}:2, or -n for every host"
            )
        places.append(HostSlots(host, int(count) if colon else int(ranks or 0)))
    return places


def ssh_words(text: str) -> list[str]:
    """Returns the words of an ssh command.

    Raises:
        ValueError: it has none.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"--ssh must be a command, not {text!r}: {error}") from None
    if not words:
        raise ValueError("--ssh must be a command, but is empty")
    return words


def addresses(text: str) -> list[str]:
    """Returns the host:port of each host in host,host:port; none if the text is not of this form."""
    hosts, _, port = text.rpartition(":")
    wrong = not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536)
    if wrong or not all(re.fullmatch(r"[^\s/]+", host) for host in hosts.split(",")):
        return []
    return [f"{host}:{port}" for host in hosts.split(",")]
