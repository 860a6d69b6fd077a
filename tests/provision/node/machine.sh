#!/bin/sh
# What a dressed node shows of the VM that runs on it: its QEMU's command line, its PCI tree, its serial console, `qm`.
set -eu
tool() { cat >"/usr/local/sbin/$1"; chmod 0755 "/usr/local/sbin/$1"; }
tool qm <<'T'
#!/bin/sh
echo "qm $*" >>/var/lib/dressed/calls
[ "$1" != monitor ] || { n=0; for bus in 5 6 7 8 1 2 3 4; do
  printf '  Bus  %d, device   0, function 0:\n    id "hostpci%d"\n' $bus $n; n=$((n + 1)); done; }
T
tool socat <<'T'
#!/usr/bin/python3
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(next(word for word in sys.argv if word.startswith("UNIX-CONNECT:")).partition(":")[2])
while data := s.recv(4096):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
T
