#!/bin/sh
# Prepares the system of an image: Python, OpenSSH, an init, a user, and what ssh sessions and login
# shells need. Packages that the base image has are not installed again, so a base that has all of
# them needs no package index. Runs in the Dockerfile.
set -eu
here=$(dirname "$0")

if ! command -v python3 ssh tini ip ps >/dev/null || [ ! -x /usr/sbin/sshd ] \
    || ! python3 -c 'import pip' 2>/dev/null; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    ca-certificates iproute2 openssh-client openssh-server procps python3 python3-pip python3-venv tini
  rm -rf /var/lib/apt/lists/*
fi

# An image is not a system that Debian's packages manage: `pip install` works as people expect, and
# what it installs is in /usr/local, which ssh sessions and login shells search, too.
rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
command -v python >/dev/null || ln -s "$(command -v python3)" /usr/local/bin/python

# The user for `--user ronde` and for pods that may not run as root.
if taken=$(getent passwd 1000 | cut -d: -f1) && [ -n "$taken" ] && [ "$taken" != ronde ]; then
  userdel --remove "$taken" 2>/dev/null
fi
id ronde >/dev/null 2>&1 || useradd --create-home --uid 1000 --user-group --shell /bin/bash ronde
# No password at all, instead of a locked account; `sshd` can only do this where it may write.
usermod --password '*' ronde
install -d -m 700 -o ronde -g ronde /home/ronde/.ssh
install -d -m 700 /root/.ssh

# Host keys are made when sshd starts: a key in an image would be everybody's.
rm -f /etc/ssh/ssh_host_*
install -d -m 755 /run/sshd
if [ ! -e /usr/sbin/sshd.openssh ]; then
  dpkg-divert --quiet --divert /usr/sbin/sshd.openssh --rename --add /usr/sbin/sshd
fi
install -m 755 "$here/sshd" /usr/sbin/sshd
install -d -m 755 /etc/ssh/sshd_config.d /etc/ssh/ssh_config.d
install -m 644 "$here/sshd.conf" /etc/ssh/sshd_config.d/ronde.conf
install -m 644 "$here/ssh.conf" /etc/ssh/ssh_config.d/ronde.conf
install -m 644 "$here/profile.sh" /etc/profile.d/ronde.sh

# Sessions of sshd start with the variables of the image that programs need to be found.
echo "SetEnv PATH=$PATH${LD_LIBRARY_PATH:+ LD_LIBRARY_PATH=$LD_LIBRARY_PATH}" \
  >>/etc/ssh/sshd_config.d/ronde.conf
