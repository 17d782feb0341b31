# A login shell (`bash -lc`) keeps the PATH that it was started with: /etc/profile has replaced it.
if [ -r "/proc/$$/environ" ]; then
  inherited=$(tr '\0' '\n' <"/proc/$$/environ" | sed -n 's/^PATH=//p')
  [ -z "$inherited" ] || export PATH="$inherited"
  unset inherited
fi
