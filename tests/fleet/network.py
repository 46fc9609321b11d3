# SPDX-License-Identifier: Apache-2.0
"""Network namespaces, one for each process that can be cut off from others. Needs root in a network and a mount namespace."""

import subprocess

PREFIX = "10.77.0."


def ip(*words):
    """Runs `ip`."""
    subprocess.run(["ip", *(str(word) for word in words)], check=True, capture_output=True)


class Node:
    """A network namespace with one address."""

    def __init__(self, number):
        self.name, self.host = f"node-{number}", f"{PREFIX}{number}"
        self.command = ["ip", "netns", "exec", self.name]
        ip("netns", "add", self.name)
        ip("link", "add", f"veth{number}", "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("link", "set", f"veth{number}", "master", "bridge0", "up")
        ip("-n", self.name, "addr", "add", f"{self.host}/24", "dev", "eth0")
        ip("-n", self.name, "link", "set", "eth0", "up")
        ip("-n", self.name, "link", "set", "lo", "up")


class Network:
    """Namespaces that are connected by a bridge. This process is connected as well, and always reaches all of them."""

    def __init__(self):
        self.nodes, self.cuts = [], []
        ip("link", "add", "bridge0", "type", "bridge")
        ip("addr", "add", f"{PREFIX}254/24", "dev", "bridge0")
        ip("link", "set", "bridge0", "up")

    def node(self):
        """A new namespace."""
        self.nodes.append(Node(len(self.nodes) + 1))
        return self.nodes[-1]

    def cut(self, some, others):
        """No packet passes between a node of `some` and one of `others`."""
        for one, other in ((one, other) for one in some for other in others if one is not other):
            for source, target in ((one, other), (other, one)):
                route = ("-n", source.name, "route", "add", "blackhole", f"{target.host}/32")
                ip(*route)
                self.cuts.append(route)

    def isolate(self, some):
        """Cuts nodes off from all others."""
        self.cut(some, [node for node in self.nodes if node not in some])

    def heal(self):
        """Ends all cuts."""
        for route in self.cuts:
            ip(*(word if word != "add" else "del" for word in route))
        self.cuts = []

    def end(self):
        """Removes the namespaces. Their processes must have ended."""
        for number, node in enumerate(self.nodes, 1):
            # the kernel removes it later than the namespace otherwise
            ip("link", "del", f"veth{number}")
            ip("netns", "del", node.name)
        ip("link", "del", "bridge0")
