# SPDX-License-Identifier: Apache-2.0
"""A minimal client for single calls and for streams, which it reads event by event. It never retries."""
import http.client
import json
import socket
from urllib.parse import urlsplit


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, {k.lower(): v for k, v in headers}, body

    def json(self):
        return json.loads(self.body)

    def events(self):
        """The objects of an event stream, without the final [DONE]."""
        frames = [f for f in self.body.split(b"\n\n") if f.startswith(b"data: ")]
        return [json.loads(f[6:]) for f in frames if f != b"data: [DONE]"]

    def done(self):
        return self.body.endswith(b"data: [DONE]\n\n")


def connect(base, timeout=120):
    url = urlsplit(base)
    return http.client.HTTPConnection(url.hostname, url.port, timeout=timeout)


def encode(body):
    return body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()


def call(base, method, path, body=None, timeout=120):
    connection = connect(base, timeout)
    try:
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, encode(body), headers)
        response = connection.getresponse()
        return Reply(response.status, response.getheaders(), response.read())
    finally:
        connection.close()


def generate(base, body, timeout=120, path="/generate"):
    return call(base, "POST", path, body, timeout)


class Stream:
    """An open generation: `next()` returns one event object, None at the end; `drop()` closes the connection."""

    def __init__(self, base, body, path="/generate"):
        self.connection = connect(base)
        self.connection.request("POST", path, encode(body), {"Content-Type": "application/json"})
        # stored, because http.client drops its reference to the socket if a reply has no content-length
        self.socket = self.connection.sock
        self.response = None

    def next(self):
        self.response = self.response or self.connection.getresponse()
        while line := self.response.readline():
            if line.startswith(b"data: {"):
                return json.loads(line[6:])
        return None

    def drop(self):
        # shutdown, because http.client's reader keeps the descriptor open after close
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.connection.close()


def running(base):
    """The number of requests in the engine: 0.5.23 has /v1/loads, 0.5.6 /get_load."""
    reply = call(base, "GET", "/v1/loads")
    if reply.status == 200:
        return sum(d["num_running_reqs"] + d["num_waiting_reqs"] for d in reply.json()["loads"])
    return sum(d["num_reqs"] for d in call(base, "GET", "/get_load").json())
