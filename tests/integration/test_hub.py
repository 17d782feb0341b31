"""A hub: real processes of `ronde hub serve` and of people, each with a home of their own."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
from contextlib import contextmanager, suppress

import pytest
from jobs import until
from lab import ronde

LIMIT_SECONDS = 40


class Hub:
    """A hub on loopback."""

    def __init__(self, folder):
        self.folder, self.log = folder / "hub", folder / "hub.log"
        self.port = 0
        self.process = None

    def start(self):
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [ronde(), "hub", "serve", "--folder", self.folder, "--listen", self.listen()],
                stdout=log,
                stderr=log,
                env=environment(self.folder.parent),
            )
        until(self._is_up, LIMIT_SECONDS, self.log.read_text)
        self.port = int((self.folder / "address").read_text().rpartition(":")[2])
        return self

    def listen(self):
        return f"127.0.0.1:{self.port}"

    def _is_up(self):
        assert self.process.poll() is None, self.log.read_text()
        try:
            port = int((self.folder / "address").read_text().rpartition(":")[2])
            return b"200 OK" in request(port, "GET /v1/health HTTP/1.1")
        except (OSError, ValueError):
            return False

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(LIMIT_SECONDS)

    def invite(self, *options):
        return say(self.folder.parent, "hub", "invite", "--folder", self.folder, *options).strip()


def environment(home):
    return {"PATH": os.environ["PATH"], "HOME": str(home), "USER": home.name}


def call(home, *arguments, text=None):
    home.mkdir(exist_ok=True)
    command = [ronde(), *arguments]
    return subprocess.run(
        command,
        env=environment(home),
        input=text,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )


def say(home, *arguments, text=None):
    """What a command prints; it succeeds."""
    ended = call(home, *arguments, text=text)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def fail(home, *arguments):
    """The error of a command that fails."""
    ended = call(home, *arguments)
    assert ended.returncode in (1, 2) and not ended.stdout, (ended.returncode, ended.stdout)
    assert "\nhint: " in ended.stderr
    return ended.stderr


@contextmanager
def secured(port):
    """A TLS connection of a stranger."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), LIMIT_SECONDS) as plain,
        context.wrap_socket(plain) as stream,
    ):
        yield stream


def request(port, head, body=b""):
    """The answer to a request that nobody has signed; empty if the hub hangs up before its end."""
    answer = b""
    with secured(port) as stream, suppress(ConnectionError, ssl.SSLError):
        more = f"\r\nHost: hub\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        stream.sendall(head.encode() + more.encode() + body)
        while block := stream.recv(65536):
            answer += block
    return answer


@pytest.fixture
def hub(tmp_path):
    hub = Hub(tmp_path).start()
    yield hub
    if hub.process.poll() is None:
        assert hub.stop() == 0, hub.log.read_text()


def test_people_come_by_invitation_and_go_when_they_are_shut_out(hub, tmp_path):
    ann, bob = tmp_path / "ann", tmp_path / "bob"
    assert "as ann, admin" in say(ann, "login", hub.invite("--as", "admin"))
    line = say(ann, "hub", "invite", "--uses", "1")
    assert "as Bob, lender" in say(bob, "login", "--name", "Bob", text=line)
    people = json.loads(say(bob, "hub", "people", "--json"))
    assert [(person["name"], person["role"]) for person in people] == [
        ("ann", "admin"),
        ("Bob", "lender"),
    ]
    assert "this needs the role admin, and yours is lender" in fail(bob, "hub", "invite")
    assert "is not valid" in fail(tmp_path / "eve", "login", line)
    assert say(ann, "hub", "revoke", "Bob") == "Bob is shut out\n"
    assert "this hub does not know you" in fail(bob, "hub", "people")
    assert "is not valid" in fail(bob, "login", say(ann, "hub", "invite"))
    assert "shut out" in say(ann, "hub", "people")
    key = ann / ".config" / "ronde" / "identity.key"
    assert key.stat().st_mode & 0o077 == 0


def test_a_hub_that_is_killed_comes_back_with_all_it_knew(hub, tmp_path):
    ann = tmp_path / "ann"
    say(ann, "login", hub.invite("--as", "admin"))
    line = hub.invite()
    assert hub.stop(signal.SIGKILL) == -signal.SIGKILL
    assert "cannot reach the hub" in fail(ann, "hub", "people")
    hub.start()
    assert "ann" in say(ann, "hub", "people")
    assert "as bob, lender" in say(tmp_path / "bob", "login", line)


def test_another_machine_at_the_address_is_not_trusted(hub, tmp_path):
    ann = tmp_path / "ann"
    say(ann, "login", hub.invite("--as", "admin"))
    hub.stop()
    # Somebody else takes the port over, with a certificate of their own.
    other = Hub(tmp_path / "other")
    (tmp_path / "other").mkdir()
    other.port = hub.port
    other.start()
    assert "is not the hub that invited you" in fail(ann, "hub", "people")
    other.stop()


def test_strangers_get_nothing_but_the_health_check(hub):
    paths = ["me", "people", "../etc/passwd", "people/1%20OR%201=1", "%00", "invites"]
    for method in ("GET", "POST", "DELETE"):
        for path in paths:
            answer = request(hub.port, f"{method} /v1/{path} HTTP/1.1")
            assert re.match(rb"HTTP/1.1 (400|401|404|405|415) ", answer), answer
    # Without a body: a hub that hangs up with some of a request unread may cut its answer short.
    forged = "POST /v1/login HTTP/1.1\r\nContent-Type: application/json\r\nAuthorization: Ronde "
    for header in ("", "x", "a" * 64, f"{'a' * 64}.{'b' * 128}", f"{'00' * 32}.{'00' * 64}"):
        answer = request(hub.port, forged + header)
        assert answer.startswith(b"HTTP/1.1 401 "), (header, answer)
    assert b"200 OK" in request(hub.port, "GET /v1/health HTTP/1.1")


def test_a_signature_is_worth_nothing_on_another_connection(hub, tmp_path):
    # What a caller sends on one connection is sent again on another one.
    ann = tmp_path / "ann"
    line = hub.invite("--as", "admin")
    certificate = line.split("/")[1]
    seen = []
    with listening() as middle:
        port = middle.getsockname()[1]
        # A machine in the middle cannot decrypt, only pass on: the certificate gives it away.
        process = subprocess.Popen(
            [ronde(), "login", f"127.0.0.1:{port}/{certificate}/{line.split('/')[2]}"],
            env=environment(ann),
            stderr=subprocess.PIPE,
            text=True,
        )
        there, _ = middle.accept()
        with there:
            seen.append(there.recv(65536))
        _, error = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 1 and "cannot reach the hub" in error
    assert line.split("/")[2].encode() not in seen[0]
    say(ann, "login", line)


@contextmanager
def listening():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(LIMIT_SECONDS)
        yield listener


def test_long_requests_and_silent_connections_hold_up_nobody(hub, tmp_path):
    # More than a hub keeps of strangers.
    silent = [socket.create_connection(("127.0.0.1", hub.port)) for _ in range(400)]
    ann = tmp_path / "ann"
    say(ann, "login", hub.invite("--as", "admin"))
    head = "POST /v1/login HTTP/1.1\r\nContent-Type: application/json"
    for long in (head, "GET /v1/me HTTP/1.1\r\nX: " + "y" * 500_000):
        answer = request(hub.port, long, b"x" * 10_000_000)
        assert re.match(rb"(HTTP/1.1 (401|413|431) .*)?$", answer.split(b"\r\n")[0]), answer
    assert "ann" in say(ann, "hub", "people")
    for stream in silent:
        stream.close()


def test_what_is_wrong_is_said_before_anything_starts(tmp_path):
    ann = tmp_path / "ann"
    assert "there is no hub here" in fail(ann, "hub", "invite")
    assert "you have not logged in" in fail(ann, "hub", "people")
    assert "this is not an invitation" in fail(ann, "login", "hello")
    spelled = call(ann, "hub", "serve", "--database", "postgres://hub:secret@db/x")
    assert spelled.returncode == 2 and "PGPASSWORD" in spelled.stderr
    assert "secret" not in spelled.stderr.split("error:")[1].split("PGPASSWORD")[1]
    with listening() as taken:
        port = taken.getsockname()[1]
        error = fail(ann, "hub", "serve", "--listen", f"127.0.0.1:{port}")
        assert f"cannot listen on 127.0.0.1:{port}" in error
