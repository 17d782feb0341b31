"""Two hosts on one machine: network namespaces joined by a cable, and a packet capture on it."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager

# Captures packets on the cable until its input is closed; reports whether one had the word.
CAPTURE = """
import socket, sys, threading
found = False
capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
# SO_RCVBUFFORCE: space for all packets that arrive while this process is not scheduled.
capture.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)
capture.bind((sys.argv[1], 0))
capture.settimeout(0.1)
word = bytes.fromhex(sys.argv[2])
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
print("listening", flush=True)
total = 0
while not over.is_set():
    try:
        packet = capture.recv(1 << 17)
    except TimeoutError:
        continue
    total += len(packet)
    found = found or word in packet
print(total, found)
"""


def why_not():
    """Why hosts cannot be set up on this machine, or None."""
    if os.geteuid() != 0:
        return "creating network namespaces requires root"
    if shutil.which("ip") is None:
        return "the command `ip` is missing; install the package `iproute2`"
    probe = subprocess.run(["ip", "netns", "add", _name("probe")], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", _name("probe")], capture_output=True, check=False)
    return None if probe.returncode == 0 else "the kernel cannot create network namespaces"


@contextmanager
def two_hosts(network):
    """Two namespaces on a network such as `10.77.0`; yields their names and interfaces."""
    hosts = [(_name(end), f"v{end}{os.getpid() % 100000}") for end in "ab"]
    (first, left), (second, right) = hosts
    try:
        for host, _ in hosts:
            _ip("netns", "add", host)
        _ip("link", "add", left, "netns", first, "type", "veth", "peer", right, "netns", second)
        for number, (host, link) in enumerate(hosts, 1):
            _ip("-n", host, "addr", "add", f"{network}.{number}/24", "dev", link)
            _ip("-n", host, "link", "set", "lo", "up")
            _ip("-n", host, "link", "set", link, "up")
        yield hosts
    finally:
        for host, _ in hosts:
            subprocess.run(["ip", "netns", "del", host], capture_output=True, check=False)


@contextmanager
def capture(host, link, word):
    """Captures packets at a host's end of the cable; the yielded dictionary gets the result."""
    result = {}
    command = ["ip", "netns", "exec", host, sys.executable, "-c", CAPTURE, link, word.hex()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "listening\n"
        yield result
        output, _ = process.communicate(timeout=10)
        total, found = output.split()
        result.update(bytes=int(total), found=found == "True")
    finally:
        process.kill()
        process.wait()


def _name(part):
    return f"ronde-test-{os.getpid()}-{part}"


def _ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)
