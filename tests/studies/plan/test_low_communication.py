"""Steps that synchronise now and then, and parameter servers."""

import math

import pytest

pytest.importorskip("pydantic")

from ringreduce.studies.plan import predict, strategy
from tests.studies.plan.jobs import MB, cluster, job

STEP = 4 * 0.030 + 0.004
SLOW = 8 * MB / 1.0  # a link that carries all parameters in a second


def step(name, hosts=2, rate=SLOW, **more):
    return predict(job(**more), cluster(hosts=hosts, rate=rate), strategy(name), hosts)


@pytest.mark.parametrize("name", ["local_sgd", "diloco"])
@pytest.mark.parametrize("every", [1, 10, 1000])
def test_a_synchronisation_is_divided_among_the_steps_of_a_round(name, every):
    """Two ranks exchange S bytes in S / rate seconds each way."""
    found = step(f"{name}:every={every}")
    assert found.seconds == pytest.approx(STEP + 1 / every, rel=0.01)
    assert found.link_bytes == pytest.approx(8 * MB / every, rel=0.01)
    assert sum(found.causes.values()) == pytest.approx(found.seconds)
    assert found.compute_s == pytest.approx(STEP)


def test_a_round_takes_the_time_of_copies_too():
    copying = {"copy_rate": 8 * MB / 0.1}
    assert step("diloco:every=1", rate=math.inf, **copying).seconds == pytest.approx(STEP + 0.9)
    assert step("local_sgd:every=1", rate=math.inf, **copying).seconds == pytest.approx(STEP + 0.2)


def test_streaming_hides_what_fits_into_its_overlap():
    """A fragment takes 0.25 s, and a step 0.124 s."""
    for overlap, exposed in ((0, 0.25), (1, 0.126), (2, 0.002), (3, 0)):
        found = step(f"streaming_diloco:every=40:overlap={overlap}")
        assert found.exposed == pytest.approx(exposed / 10, abs=2e-4), overlap
        assert found.link_bytes == pytest.approx(8 * MB / 40, rel=0.01)


def test_a_wire_format_shortens_a_synchronisation():
    assert step("diloco:every=1:wire=int8").link_bytes == pytest.approx(8 * MB * 260 / 1024, rel=0.01)


def test_a_server_has_a_link_for_all_workers():
    """Each of 4 workers sends 8 MiB to the server, and gets as much back, after the backward pass."""
    found = step("parameter_server:servers=1", hosts=5)
    assert found.seconds == pytest.approx(0.120 + 8.0 + 0.004, rel=0.01)
    assert found.samples == 8 * 4
    two = step("parameter_server:servers=2:copies=false", hosts=6)
    assert two.seconds == pytest.approx(0.120 + 4.0 + 0.002, rel=0.01)


def test_servers_on_all_ranks_use_all_links():
    found = step("parameter_server:copies=false", hosts=4)
    assert found.seconds == pytest.approx(0.120 + 2 * 0.75 + 0.001, rel=0.01)
    assert step("parameter_server", hosts=4).seconds > found.seconds + 0.5


def test_stale_workers_do_not_wait_for_others_messages():
    """With enough servers a worker's cycle is its own: it sends 8 MiB and gets 8 MiB."""
    stale = "stale_parameter_server:copies=false"
    assert step(stale, hosts=4).seconds == pytest.approx(0.120 + 2.0 + 0.001, rel=0.02)
    assert step(f"{stale}:overlap=true", hosts=4).seconds == pytest.approx(2.0, rel=0.02)
    assert step(f"{stale}:servers=1", hosts=9).seconds == pytest.approx(16.0, rel=0.02)


def test_more_servers_than_ranks_are_refused():
    with pytest.raises(ValueError, match="servers: 4 of 4 ranks leave none to work"):
        step("parameter_server:servers=4", hosts=4)
