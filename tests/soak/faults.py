"""What a soak does to a job: processes killed and stopped, hosts taken and given, cables pulled."""

import os
import signal
import threading
import time
from contextlib import suppress

# For how long the launcher bears a stopped rank.
STOPPED_SECONDS = 5


class Troublemaker:
    """Harms the workers and hosts of one job, by dice, and remembers what it did."""

    def __init__(self, dice, site, diary):
        self.dice, self.site, self.diary = dice, site, diary
        self.faults = []
        self.timers = []

    def strike(self):
        """Does one thing; gives its kind, or None if there was nothing to harm."""
        kinds = ["kill"] * 4 + ["pause", "stop", "term", "agent", "remove", "add", "add", "two"]
        kinds += ["cut", "cut"] if self.site.has_cables else []
        self.dice.shuffle(kinds)
        for kind in kinds:
            before = time.monotonic()
            if getattr(self, f"_{kind}")():
                self.faults.append((before, kind))
                return kind
        return None

    def settle(self):
        """Undoes what can be undone, and waits for what was still to come."""
        for timer in self.timers:
            timer.join()
        self.site.list_all()

    def _victim(self):
        """A worker that trains, unless nobody with the state would be left."""
        training = self._training()
        return self.dice.choice(list(training)) if len(training) > 1 else None

    def _training(self):
        """Who trains on a host whose cable is in, and where."""
        training = self.diary.training()
        return {pid: host for pid, host in training.items() if host not in self.site.torn}

    def _host(self):
        """A host that may be taken: others train elsewhere."""
        hosts = set(self._training().values())
        host = self.site.pick(self.dice)
        return host if host is not None and len(hosts - {host}) > 0 else None

    def _kill(self):
        return _signal(self._victim(), signal.SIGKILL)

    def _term(self):
        return _signal(self._victim(), signal.SIGTERM)

    def _two(self):
        """Two ranks die at once."""
        training = self._training()
        if len(training) < 3:
            return False
        first, second = self.dice.sample(list(training), 2)
        return _signal(first, signal.SIGKILL) | _signal(second, signal.SIGKILL)

    def _pause(self):
        return self._stop_for(self.dice.uniform(0.5, STOPPED_SECONDS - 2))

    def _stop(self):
        return self._stop_for(STOPPED_SECONDS + 3)

    def _stop_for(self, seconds):
        victim = self._victim()
        if not _signal(victim, signal.SIGSTOP):
            return False
        self._later(seconds, lambda: _signal(victim, signal.SIGCONT))
        return True

    def _agent(self):
        """The agent of a host dies; its workers must not outlive it."""
        victim = self._victim()
        agent = _parent(victim) if victim else None
        # The first host is that of the launcher; its agent is the launcher's child, and fair game.
        return _signal(agent, signal.SIGKILL)

    def _cut(self):
        host = self._host()
        if host is None or host in self.site.torn:
            return False
        self.site.cut(host)
        self._later(self.dice.uniform(3, 6), lambda: self.site.mend(host))
        return True

    def _remove(self):
        host = self._host()
        return host is not None and self.site.unlist(host)

    def _add(self):
        host = self.site.pick_unlisted(self.dice)
        return host is not None and self.site.list_again(host)

    def _later(self, seconds, deed):
        timer = threading.Timer(seconds, deed)
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
