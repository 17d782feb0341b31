"""Pods of rendered manifests as namespaces of a lab, with the mounts, users and files they ask for.

A pod has its own network, process, mount, IPC and host name. Its root is a small file system with
the machine's programs and this interpreter's environment in place of an image. What stands in for
DNS is a file of names, rewritten whenever a pod comes or goes. The rest is as the manifest says:
the command, the variables, the volumes, the user, whether the root is read-only.
"""

import base64
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from jobs import until
from lab import Host, Lab

PATIENCE = float(os.environ.get("RONDE_TEST_PATIENCE", "1"))
UNSHARE = ["unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child"]
# What a container finds in its image.
IMAGE = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt")
PATH = f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SSHD = """
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
"""
SSH = """
Host *
  StrictHostKeyChecking accept-new
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


class Cluster:
    """The objects of rendered manifests and the pods that run; ends them with the `with` block."""

    def __init__(self, folder, objects, network="10.78.20"):
        self.folder = folder
        # What the image has at /horovod/examples.
        self.examples = folder / "examples"
        self.examples.mkdir()
        self.objects = {(it["kind"], it["metadata"]["name"]): it for it in objects}
        self.shared = folder / "claim"
        self.shared.mkdir()
        self.shared.chmod(0o777)
        self.lab = Lab(folder, 0, network=network)
        self.pods = []
        self._numbers = iter(range(1, 250))

    def __enter__(self):
        self.lab.__enter__()
        return self

    def __exit__(self, *_):
        try:
            for pod in self.pods:
                pod.stop()
        finally:
            self.lab.__exit__()

    def start(self, kind, name, index=None):
        """Starts a pod of a workload; its index is that of an indexed Job or a StatefulSet."""
        workload = self.objects[kind, name]
        pod = Pod(self, workload, index, next(self._numbers))
        self.pods.append(pod)
        self.publish()
        pod.start()
        return pod

    def publish(self):
        """Tells all pods the names of those that run."""
        lines = ["127.0.0.1 localhost"]
        for pod in self.pods:
            if not pod.gone:
                lines.append(f"{pod.address} {pod.host}.{pod.service} {pod.service} {pod.host}")
        for pod in self.pods:
            (pod.folder / "hosts").write_text("\n".join(lines) + "\n")

    def data(self, kind, name):
        """The files of a ConfigMap or Secret."""
        found = self.objects[kind, name]
        if kind == "ConfigMap":
            return {key: text.encode() for key, text in found["data"].items()}
        plain = {key: text.encode() for key, text in found.get("stringData", {}).items()}
        coded = found.get("data", {})
        return {**{key: base64.b64decode(text) for key, text in coded.items()}, **plain}

    def until(self, condition):
        return until(condition, 40 * PATIENCE, self.output)

    def output(self):
        return "\n".join(f"--- {pod.host}\n{pod.output()}" for pod in self.pods)


class Pod(Host):
    """A pod with one container."""

    def __init__(self, cluster, workload, index, number):
        self.spec = workload["spec"]["template"]["spec"]
        name = workload["metadata"]["name"]
        self.host = self.spec.get("hostname") or f"{name}-{index}"
        super().__init__(cluster.lab, f"{self.host}-{number}", number, 0)
        self.cluster, self.index = cluster, index
        self.interface, self.cable = "eth0", f"p{number}{cluster.lab.id}"
        self.service = self.spec.get("subdomain", name)
        self.container = self.spec["containers"][0]
        self.code = None
        self.folder.mkdir(parents=True)

    @property
    def gone(self):
        """Whether its process has ended."""
        return self.code is not None

    def start(self):
        (self.folder / "resolv.conf").write_text("")
        script = self.folder / "init.sh"
        script.write_text("\n".join(["set -e", *self._layout(), self._command()]) + "\n")
        with (self.folder / "output.txt").open("w") as output:
            self.sshd = subprocess.Popen(
                [*UNSHARE, "sh", str(script)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._plug_in()
        # Only now does the command start: a pod has its address from the beginning.
        self.sshd.stdin.write(b"\n")
        self.sshd.stdin.close()

    def run(self, command, limit=40):
        """Runs a command in the pod's shell, like `kubectl exec`."""
        inside = ["nsenter", "-t", str(self._first()), "-n", "-u", "-i", "-p", "-m", "-r"]
        return subprocess.run(
            [*inside, *self._as_user(), *self._environment(), "bash", "-c", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit * PATIENCE,
            check=False,
        )

    def runs(self, command):
        """Whether a process of the pod has this command line."""
        lines = "for line in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$line; echo; done 2>/dev/null"
        return self.run(f"{lines} | grep -qx '{command} '").returncode == 0

    def terminate(self):
        """What the kubelet does first to a pod that is to go."""
        os.kill(self._first(), signal.SIGTERM)

    def wait(self, limit=40):
        """Waits for the end of the pod's process; returns its exit code."""
        self.code = self.sshd.wait(limit * PATIENCE)
        self.cluster.publish()
        return self.code

    def output(self):
        return (self.folder / "output.txt").read_text(errors="replace")

    def stop(self):
        if self.sshd is not None:
            with suppress(OSError, IndexError):
                os.kill(self._first(), signal.SIGKILL)
        super().stop()

    def _first(self):
        """The process that is number 1 in the pod."""
        outside = self.sshd.pid
        return int(Path(f"/proc/{outside}/task/{outside}/children").read_text().split()[0])

    def _layout(self):
        """The commands that make the root file system and its mounts."""
        root = self.folder / "root"
        root.mkdir()
        yield f"hostname {self.host}"
        yield f"mount -t tmpfs -o mode=755 root {root}"
        for name in IMAGE:
            if os.path.islink(f"/{name}"):
                yield f"ln -s {os.readlink(f'/{name}')} {root}/{name}"
            elif os.path.isdir(f"/{name}"):
                yield from self._bind(root, f"/{name}", f"/{name}")
        for prefix in sorted({sys.prefix, sys.base_prefix}):
            if Path(prefix).parts[1] not in IMAGE:
                yield from self._bind(root, prefix, prefix)
        # A copy, in which there can be further places for mounts.
        yield f"cp -a /etc {root}/etc"
        yield from self._bind(root, self._etc_ssh(), "/etc/ssh")
        yield from self._bind(root, self.cluster.examples, "/horovod/examples")
        for name in ("hosts", "resolv.conf"):
            yield f"mount --bind {self.folder}/{name} {root}/etc/{name}"
        yield f"mkdir -p {root}/proc {root}/dev {root}/run/sshd {root}/root {root}/var {root}/tmp"
        yield f"chmod 711 {root}/root && chmod 1777 {root}/tmp"
        yield f"mount -t proc proc {root}/proc"
        yield f"mount --rbind /dev {root}/dev"
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", [])}
        for mount in self.container.get("volumeMounts", []):
            yield from self._mount(root, volumes[mount["name"]], mount["mountPath"])
        # Mounted by the kubelet after the volumes of the pod.
        if self._security("readOnlyRootFilesystem"):
            yield f"mount -o remount,ro,mode=755 {root}"
        yield "read -r _"
        yield f"cd {root}"

    def _etc_ssh(self):
        """What Ronde's images have at /etc/ssh, and a host key, as sshd makes one there."""
        folder = self.folder / "etc-ssh"
        folder.mkdir()
        (folder / "sshd_config").write_text(SSHD)
        (folder / "ssh_config").write_text(SSH)
        key = folder / "ssh_host_ed25519_key"
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
        subprocess.run(command, check=True)
        return folder

    def _bind(self, root, source, target):
        yield f"mkdir -p {root}{target}"
        yield f"mount --bind {source} {root}{target}"
        yield f"mount -o remount,bind,ro {root}{target}"

    def _mount(self, root, volume, target):
        yield f"mkdir -p {root}{target}"
        if "emptyDir" in volume:
            size = (volume["emptyDir"] or {}).get("sizeLimit", "64Mi").rstrip("i")
            yield f"mount -t tmpfs -o mode=777,size={size} tmpfs {root}{target}"
        elif "persistentVolumeClaim" in volume:
            yield f"mount --bind {self.cluster.shared} {root}{target}"
        else:
            yield from self._bind(root, self._files(volume), target)

    def _files(self, volume):
        """A folder with the files of a ConfigMap or Secret."""
        if "configMap" in volume:
            source, name, kind = volume["configMap"], volume["configMap"]["name"], "ConfigMap"
        else:
            source, name, kind = volume["secret"], volume["secret"]["secretName"], "Secret"
        folder = self.folder / volume["name"]
        folder.mkdir()
        for key, content in self.cluster.data(kind, name).items():
            (folder / key).write_bytes(content)
            (folder / key).chmod(source.get("defaultMode", 0o644))
        return folder

    def _security(self, key):
        own = self.container.get("securityContext", {})
        return own.get(key, self.spec.get("securityContext", {}).get(key))

    def _as_user(self):
        user = self._security("runAsUser") or 0
        command = ["setpriv", f"--reuid={user}", f"--regid={user}"]
        group = self._security("fsGroup")
        command.append("--clear-groups" if group is None else f"--groups={group}")
        if self._security("allowPrivilegeEscalation") is False:
            command.append("--no-new-privs")
        if "ALL" in (self._security("capabilities") or {}).get("drop", []):
            command.append("--bounding-set=-all")
        return command

    def _environment(self):
        """Starts a command in the container's directory, with its variables and no others."""
        place = self.container.get("workingDir", "/horovod/examples")
        found = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/root", "OMP_NUM_THREADS": "1"}
        found["HOSTNAME"] = self.host
        if self.index is not None:
            found["JOB_COMPLETION_INDEX"] = found["PET_NODE_RANK"] = str(self.index)
        for entry in self.container.get("env", []):
            found[entry["name"]] = self._value(entry)
        variables = [f"{name}={value}" for name, value in found.items()]
        return ["env", "-i", f"--chdir={place}", *variables]

    def _value(self, entry):
        source = entry.get("valueFrom", {})
        if "secretKeyRef" in source:
            place = source["secretKeyRef"]
            return self.cluster.data("Secret", place["name"])[place["key"]].decode()
        if "fieldRef" in source:
            known = {"status.podIP": self.address, "metadata.name": self.name}
            return known[source["fieldRef"]["fieldPath"]]
        return entry.get("value", "")

    def _command(self):
        words = [*self.container.get("command", []), *self.container.get("args", [])]
        start = ["chroot", ".", *self._as_user(), *self._environment(), *words]
        return f"exec {shlex.join(start)} </dev/null"
