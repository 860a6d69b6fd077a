#!/bin/sh
# The life of one guest: its overlay mount, its boots, its end. It runs as the first process of its own process and mount
# namespaces, so that guest, mount and systemd-nspawn's notes in /run go with it however it ends.
#   supervise.sh MACHINE BASE PLACE NSPAWN-OPTION...
set -eu
machine=$1 base=$2 place=$3
shift 3
cd "$place"
mount -t overlay "$machine" -o "lowerdir=$base,upperdir=upper,workdir=work" root
mkdir -p /run/systemd/nspawn
mount -t tmpfs "$machine" /run/systemd/nspawn
if [ ! -d /run/systemd/system ]; then # no systemd here that gave us control groups of our own: guests would share them
    for tree in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd; do
        [ -e "$tree/cgroup.procs" ] || continue
        mkdir -p "$tree/$machine"
        echo 0 >"$tree/$machine/cgroup.procs"
    done
fi
while :; do
    rm -rf "/run/systemd/nspawn/propagate/$machine"
    rc=0
    systemd-nspawn -D root -M "$machine" "$@" || rc=$?
    [ "$rc" -eq 133 ] || exit "$rc" # 133: the guest asked for a reboot
done
