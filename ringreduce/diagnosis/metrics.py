"""The statistics of a process for Prometheus and others that read OpenMetrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ringreduce.communicator.statistics import Statistics, of_process
from ringreduce.requirement import unmet

try:
    from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.openmetrics.exposition import generate_latest
    from prometheus_client.registry import Collector
except ImportError as error:
    raise unmet(
        "ringreduce.diagnosis.metrics", "prometheus_client", "0.20", error, "ringreduce[metrics]"
    ) from error

__all__ = ["registry", "serve", "text", "write"]

GROUP = ("rank", "group", "size", "transport")


class _OfProcess(Collector):
    """Reads the statistics when metrics are requested, so that calls pay nothing for them."""

    def __init__(self, rank: int) -> None:
        self._rank = str(rank)

    def _labels(self, one: Statistics) -> list[str]:
        return [self._rank, one.group, str(one.size), one.transport]

    def collect(self) -> Iterator[Metric]:
        calls = CounterMetricFamily(
            "ringreduce_calls", "Collectives and messages.", labels=[*GROUP, "collective", "algorithm"]
        )
        sent = CounterMetricFamily(
            "ringreduce_array_bytes", "Bytes of the arrays of calls: of the input or the output, whichever is larger.",
            labels=[*GROUP, "collective", "algorithm"], unit="bytes",
        )  # fmt: skip
        waited = CounterMetricFamily(
            "ringreduce_call_wait_seconds", "Time that collectives waited for other ranks.",
            labels=[*GROUP, "collective", "algorithm"], unit="seconds",
        )  # fmt: skip
        waits = CounterMetricFamily(
            "ringreduce_waits", "Waits for a rank; peer -1: for none in particular.", labels=[*GROUP, "peer"]
        )
        by_peer = CounterMetricFamily(
            "ringreduce_peer_wait_seconds", "Time that this rank waited for another one.",
            labels=[*GROUP, "peer"], unit="seconds",
        )  # fmt: skip
        is_open = GaugeMetricFamily("ringreduce_group_open", "1 until the group is closed.", labels=GROUP)
        for one in of_process():
            own = self._labels(one)
            is_open.add_metric(own, 0 if one.closed else 1)
            for count in one.calls:
                kind = [*own, count.collective, count.algorithm]
                calls.add_metric(kind, count.calls)
                sent.add_metric(kind, count.nbytes)
                waited.add_metric(kind, count.waited)
            for peer, wait in one.waits.items():
                whom = [*own, str(one.members[peer] if peer >= 0 else peer)]
                waits.add_metric(whom, wait.count)
                by_peer.add_metric(whom, wait.seconds)
        yield from (calls, sent, waited, waits, by_peer, is_open)


def registry(rank: int) -> CollectorRegistry:
    """Returns a registry with the metrics of this process, for a server that the program already has.

    Args:
        rank: the value of the label "rank".
    """
    made = CollectorRegistry()
    made.register(_OfProcess(rank))
    return made


def text(rank: int) -> str:
    """Returns the metrics of this process in OpenMetrics's text format."""
    made: bytes = generate_latest(registry(rank))  # type: ignore[no-untyped-call]
    return made.decode()


def serve(rank: int, host: str, port: int) -> None:
    """Serves the metrics by HTTP from a separate thread until the process ends."""
    start_http_server(port, addr=host, registry=registry(rank))


def write(rank: int, path: Path) -> None:
    """Replaces a file with the current metrics. Readers see the old file or the new one."""
    if path.suffix == ".prom":
        write_to_textfile(str(path), registry(rank))
        return
    new = path.with_name(f".{path.name}.new")
    new.write_text(text(rank))
    new.replace(path)
