# Read by the scripts of both roles: sshd with the keys of the Secret, as root.

mkdir -p ~/.ssh /run/sshd && chmod 700 ~/.ssh || exit 1
cp /etc/ronde/ssh/host-key ~/.ssh/id_rsa && chmod 600 ~/.ssh/id_rsa || exit 1
if [ -s /etc/ronde/ssh/host-key-pub ]; then
  cp /etc/ronde/ssh/host-key-pub ~/.ssh/authorized_keys
else
  ssh-keygen -y -f ~/.ssh/id_rsa >~/.ssh/authorized_keys
fi || exit 1
chmod 600 ~/.ssh/authorized_keys
# Pods come and go under the same names, with new host keys.
cat >~/.ssh/config <<END
Host *
  Port $SSHPORT
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
END
chmod 600 ~/.ssh/config

# Variables for sshd's sessions, which do not inherit those of the container: PATH, and the ones
# that belong to this host.
session_variables() {
  printf 'PATH="%s" RONDE_HOST_ENV="%s"' "$PATH" "$RONDE_HOST_ENV"
  for name in $(echo "$RONDE_HOST_ENV" | tr , ' '); do
    printf ' %s="%s"' "$name" "$(printenv "$name" | sed 's/[\\"]/\\&/g')"
  done
}

# Becomes sshd, with a host key of its own.
serve_ssh() {
  rm -f ~/.ssh/host_key ~/.ssh/host_key.pub
  ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/host_key || exit 1
  exec "$(command -v sshd || echo /usr/sbin/sshd)" -D -e -p "$SSHPORT" -h ~/.ssh/host_key \
    -o PidFile=none -o PermitRootLogin=prohibit-password -o PasswordAuthentication=no \
    -o KbdInteractiveAuthentication=no -o StrictModes=no -o UsePAM=no -o MaxStartups=100 \
    -o AuthorizedKeysFile=.ssh/authorized_keys -o "SetEnv=$(session_variables)"
}
