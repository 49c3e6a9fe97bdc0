"""torchrun, and everything else that sets its variables, such as ``ringreduce run``."""

from __future__ import annotations

import re
from typing import Any

from ringreduce.descriptors import above_standard
from ringreduce.errors import Error
from ringreduce.start.launchers.launcher import BY_HAND, Env, Launched, Launcher, number

__all__ = ["Torchrun"]

_stores: dict[tuple[str, int], Any] = {}  # of agents. A lost agent shows at once on a connection that is open


class Torchrun(Launcher):
    name = "torchrun"
    rank, sizes, here = "RANK", ("WORLD_SIZE",), ("LOCAL_WORLD_SIZE",)
    restarts_all = True

    def job(self, env: Env) -> str:
        return "/".join(env.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"))

    def across_hosts(self, known: Launched, env: Env) -> bool:
        """If torchrun has not set the variables, the number of local ranks may be missing.

        Then an address that other hosts can reach means that there are other hosts.
        """
        if "LOCAL_WORLD_SIZE" not in env and env.get("MASTER_PORT"):
            return not re.fullmatch(r"localhost|127\.[\d.]+|::1|", env.get("MASTER_ADDR", ""))
        return super().across_hosts(known, env)

    def place_across_hosts(self, known: Launched, env: Env, timeout: float) -> Any:
        try:
            from torch._C._distributed_c10d import PrefixStore
        except ImportError as error:
            raise ValueError(
                f"the {known.size} ranks of this job may be on several hosts, and need torch's store to meet. Install "
                f"torch; or {BY_HAND} ({error})"
            ) from error

        return PrefixStore(f"ringreduce/{known.job}", _store(known, env, timeout))

    def hidden(self, env: Env) -> str:
        return "" if _is_of_agent(env) else "a store of rank 0"

    def started_alone(self, known: Launched, env: Env, timeout: float) -> bool:
        """Only with ``--rdzv-backend static`` does each agent of several restart its own ranks and no others.

        It then keeps its notes in the store that ranks get, as agents with other backends do not.
        """
        if not _is_of_agent(env) or env.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            return False
        if env.get("GROUP_WORLD_SIZE", "1") == "1":
            return False
        notes = f"{env.get('TORCHELASTIC_RUN_ID')}/torchelastic/assigned_ranks/{env.get('GROUP_RANK')}"
        return bool(_store(known, env, timeout).check([notes]))


def _is_of_agent(env: Env) -> bool:
    """Returns whether the store is the agent's, rather than that of rank 0."""
    return env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


@above_standard()
def _store(known: Launched, env: Env, timeout: float) -> Any:
    from datetime import timedelta

    from torch._C._distributed_c10d import TCPStore

    host, port = env.get("MASTER_ADDR", ""), number(env, "MASTER_PORT")
    if not host or not 0 < port < 65536:
        raise ValueError(
            f"MASTER_ADDR must be rank 0's host and MASTER_PORT a port from 1 to 65535, not {host!r} and {port}"
        )
    if (host, port) in _stores:
        return _stores[host, port]
    opened_here = known.rank == 0 and not _is_of_agent(env)
    try:
        store = TCPStore(
            host, port, known.size, opened_here, timedelta(seconds=timeout), wait_for_workers=False
        )
    except RuntimeError as error:
        raise Error(
            f"torch's store at MASTER_ADDR={host}, MASTER_PORT={port} cannot be used: {error}"
        ) from error
    if _is_of_agent(env):
        _stores[host, port] = store
    return store
