"""The lab: real Debian hosts on this machine, and the stand-ins for what cannot be had there.

A lab is a bridge with its own addresses, guests that boot systemd as PID 1 (systemd-nspawn over one cached base tree),
their SSH keys, a package depot, and an inventory that names them. `lab.lab.Lab` is the way in; nothing is loaded here,
as `invoke --list` passes by:

    lab = Lab.open("dev")
    lab.up(hosts=1)
    lab.guests[0].run("systemctl is-system-running").stdout     # over plain ssh
    lab.down()                                                  # nothing is left but the cache
"""
