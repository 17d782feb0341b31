"""Faults of a soak test: kills and stops processes, adds and removes hosts, pulls cables."""

import os
import signal
import threading
import time
from contextlib import suppress

# How long the launcher tolerates a stopped rank.
STOPPED_SECONDS = 5


class FaultInjector:
    """Injects random faults into the workers and hosts of one job, and records them."""

    def __init__(self, rng, site, diary):
        self.rng, self.site, self.diary = rng, site, diary
        self.faults = []
        self.timers = []

    def inject(self):
        """Injects one fault and returns its kind, or None if none was possible."""
        kinds = ["kill"] * 4 + ["pause", "stop", "term", "agent", "remove", "add", "add", "two"]
        kinds += ["cut", "cut"] if self.site.has_cables else []
        self.rng.shuffle(kinds)
        for kind in kinds:
            before = time.monotonic()
            if getattr(self, f"_{kind}")():
                self.faults.append((before, kind))
                return kind
        return None

    def settle(self):
        """Waits for pending recoveries and lists all hosts again."""
        for timer in self.timers:
            timer.join()
        self.site.list_all()

    def _victim(self):
        """A training worker, unless it is the last one that has the state."""
        training = self._training()
        return self.rng.choice(list(training)) if len(training) > 1 else None

    def _training(self):
        """The training workers on hosts whose cable is connected, and their hosts."""
        training = self.diary.training()
        return {pid: host for pid, host in training.items() if host not in self.site.torn}

    def _host(self):
        """A host that may be removed because workers train on others."""
        hosts = set(self._training().values())
        host = self.site.pick(self.rng)
        return host if host is not None and len(hosts - {host}) > 0 else None

    def _kill(self):
        return _signal(self._victim(), signal.SIGKILL)

    def _term(self):
        return _signal(self._victim(), signal.SIGTERM)

    def _two(self):
        """Kills two ranks at once."""
        training = self._training()
        if len(training) < 3:
            return False
        first, second = self.rng.sample(list(training), 2)
        return _signal(first, signal.SIGKILL) | _signal(second, signal.SIGKILL)

    def _pause(self):
        return self._stop_for(self.rng.uniform(0.5, STOPPED_SECONDS - 2))

    def _stop(self):
        return self._stop_for(STOPPED_SECONDS + 3)

    def _stop_for(self, seconds):
        victim = self._victim()
        if not _signal(victim, signal.SIGSTOP):
            return False
        self._later(seconds, lambda: _signal(victim, signal.SIGCONT))
        return True

    def _agent(self):
        """Kills the agent of a host; its workers must not outlive it."""
        victim = self._victim()
        agent = _parent(victim) if victim else None
        # The agent on the first host is the launcher's child, and may be killed too.
        return _signal(agent, signal.SIGKILL)

    def _cut(self):
        host = self._host()
        if host is None or host in self.site.torn:
            return False
        self.site.cut(host)
        self._later(self.rng.uniform(3, 6), lambda: self.site.mend(host))
        return True

    def _remove(self):
        host = self._host()
        return host is not None and self.site.unlist(host)

    def _add(self):
        host = self.site.pick_unlisted(self.rng)
        return host is not None and self.site.list_again(host)

    def _later(self, seconds, action):
        timer = threading.Timer(seconds, action)
        timer.start()
        self.timers.append(timer)


def _signal(pid, number):
    if pid is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def _parent(pid):
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[1])
    return None
