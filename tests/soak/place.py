"""The hosts of a soak test: hosts of the lab, or several names of this machine."""

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

import lab

SCRIPT = '#!/bin/sh\ncat "{listing}"\n'


class Site:
    """The hosts, and the list that the discovery script prints."""

    has_cables = False
    options = ()

    def __init__(self, folder, names, slots):
        self.folder, self.names, self.slots = Path(folder), names, slots
        self.listed = list(names)
        # Hosts whose cable is unplugged.
        self.torn = set()
        self.listing = self.folder / "hosts"
        self.script = self.folder / "discover.sh"
        self.script.write_text(SCRIPT.format(listing=self.listing))
        self.script.chmod(0o755)
        self._write()

    def pick(self, rng):
        """A listed host that may get a fault: not the first, and only if two remain."""
        others = [name for name in self.listed if name != self.names[0]]
        return rng.choice(others) if len(others) > 1 else None

    def pick_unlisted(self, rng):
        """A random host that is not listed."""
        missing = [name for name in self.names if name not in self.listed]
        return rng.choice(missing) if missing else None

    def unlist(self, name):
        """Takes a host off the list."""
        self.listed.remove(name)
        return self._write()

    def list_again(self, name):
        """Puts a host on the list."""
        self.listed.append(name)
        return self._write()

    def list_all(self):
        """Puts all hosts on the list."""
        self.listed = list(self.names)
        return self._write()

    def start(self, command, env, output):
        """Starts the launcher."""
        return subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )

    def end(self):
        """Removes the hosts."""

    def _write(self):
        lines = "".join(f"{name}:{self.slots}\n" for name in self.listed)
        fresh = self.listing.with_suffix(".new")
        fresh.write_text(lines)
        os.replace(fresh, self.listing)
        return True


class LabSite(Site):
    """Hosts in separate namespaces, connected by a bridge and reached over ssh."""

    has_cables = True
    options = ("-p", "2222")

    def __init__(self, folder, count, slots):
        self.lab = lab.Lab(folder, count)
        super().__init__(folder, [host.name for host in self.lab.hosts], slots)
        self.lab.__enter__()

    def start(self, command, env, output):
        """Starts the launcher on the first host."""
        prefix = self.lab.hosts[0].prefix()
        return super().start([*prefix, *command], self.lab.environment(env), output)

    def cut(self, name):
        """Pulls a host's cable."""
        self.torn.add(name)
        self._host(name).unplug()

    def mend(self, name):
        """Plugs a host's cable in again."""
        host = self._host(name)
        subprocess.run(["ip", "-n", self.lab.bridge, "link", "set", host.cable, "up"], check=False)
        self.torn.discard(name)

    def end(self):
        """Takes all hosts down."""
        self.lab.__exit__()

    def _host(self, name):
        return next(host for host in self.lab.hosts if host.name == name)


def choose(folder, hosts, slots):
    """The lab if it can run on this machine, otherwise several names of this machine."""
    reason = lab.why_not()
    if reason is None:
        return LabSite(folder, hosts, slots)
    print(f"no lab here ({reason}): hosts are names of this machine, and no cable is pulled")
    return Site(folder, ["localhost", *(f"127.0.0.{n}" for n in range(2, hosts + 1))], slots)
