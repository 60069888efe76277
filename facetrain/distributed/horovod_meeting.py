"""How the ranks of a Horovod run find each other, whichever launcher started them.

horovodrun runs the server through which Horovod's ranks exchange addresses, and tells it in the
environment. torchrun and our own launcher (facetrain/distributed/launch.py) know nothing of
Horovod: there the ranks check in where `torch.distributed` would meet, then rank 0 serves until all
are joined. Horovod ends the process, without a word, when a rank does not come; that is why all
check in first.

https://horovod.readthedocs.io/en/stable/api.html#environment-variables
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping

from torch.distributed import Store
from torch.distributed.rendezvous import rendezvous

from facetrain.distributed.world import World

_ADDRESS_KEY = "horovod-address"


@contextlib.contextmanager
def join(world: World, timeout_s: float) -> Iterator[None]:
    """Within, everything Horovod's `init` needs stands in the environment.

    Leave it only when all ranks are joined.

    Args:
        timeout_s: how long to wait for other ranks, and the longest wait of Horovod's own messages.

    Raises:
        RuntimeError: other ranks did not come.
        ValueError: the launcher did not say where to meet.
    """
    # Its words on a lost peer are several lines; ours is one.
    os.environ.setdefault("HOROVOD_LOG_LEVEL", "fatal")
    with contextlib.ExitStack() as stack:
        variables = settings(timeout_s)
        if not world.by_horovodrun:
            timeout = datetime.timedelta(seconds=timeout_s)
            store, _, _ = next(
                rendezvous(world.init_method, world.rank, world.world_size, timeout=timeout)
            )
            store.set_timeout(timeout)
            address = ""
            if world.rank == 0:
                port = stack.enter_context(_rendezvous_server("127.0.0.1" if local(world) else ""))
                address = f"{'127.0.0.1' if local(world) else world.main_address}:{port}"
            variables |= place(world, _check_in(world, store, address))
        stack.enter_context(_environment(variables))
        yield


def settings(timeout_s: float) -> dict[str, str]:
    """Horovod's settings that do not depend on the rank."""
    return {
        # Sums of several tensors at once would add in an order that depends on timing.
        "HOROVOD_FUSION_THRESHOLD": "0",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(math.ceil(timeout_s)),
        "HOROVOD_STALL_CHECK_DISABLE": "1",  # every wait of ours has its own time-out
    }


def place(world: World, address: str) -> dict[str, str]:
    """What horovodrun would have told this rank.

    Horovod's idea of machines serves only its hierarchical operations, which are off: all ranks
    count as of one.

    Args:
        address: "host:port" of the server.
    """
    host, _, port = address.rpartition(":")
    rank, size = str(world.rank), str(world.world_size)
    variables = {
        "HOROVOD_RANK": rank,
        "HOROVOD_SIZE": size,
        "HOROVOD_LOCAL_RANK": rank,
        "HOROVOD_LOCAL_SIZE": size,
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": "all",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
    }
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if not interface and local(world) and sys.platform.startswith("linux"):
        interface = "lo"  # the host name need not resolve
    if interface:
        variables["HOROVOD_GLOO_IFACE"] = interface
    return variables


def local(world: World) -> bool:
    """Whether all ranks are on this machine."""
    return world.local_world_size == world.world_size


def _check_in(world: World, store: Store, address: str) -> str:
    """The address that rank 0 gives, once every rank is here."""
    store.set(f"horovod-here-{world.rank}", "")
    if world.rank == 0:
        store.wait([f"horovod-here-{rank}" for rank in range(world.world_size)])
        store.set(_ADDRESS_KEY, address)
    return store.get(_ADDRESS_KEY).decode()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables are set within; afterwards all is as before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _rendezvous_server(host: str) -> Iterator[int]:
    """Horovod's own server, on a free port; the port."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    with RendezvousHTTPServer((host, 0), RendezvousHandler, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
