# What the samples of every_kind.py find: nothing of it done. Tools that a guest cannot have are stand-ins of this
# test, and leave a mark when they are called.
set -e
export DEBIAN_FRONTEND=noninteractive
apt-mark unhold tree >/dev/null 2>&1 || :
dpkg -P tree >/dev/null 2>&1 || :
ls /var/lib/apt/lists/*Packages >/dev/null 2>&1 || apt-get -q update >/dev/null
apt-get -q -y --no-install-recommends install bc curl python3-venv >/dev/null
rm -rf /root/given /run/faults /etc/default/grub /etc/sysctl.d/60-faults.conf /etc/apt/keyrings/faults.*
rm -f /etc/apt/sources.list.d/theirs* /var/lib/runbooks/node-* /var/lib/runbooks/peers*
mkdir -p /root/given /run/faults /boot/grub /usr/local/sbin /etc/modules-load.d /lib/modules/$(uname -r)/build
mkdir -p /root/kept && cp -a -n /etc/apt/sources.list.d/. /root/kept/
echo 64 >/proc/sys/net/ipv4/ip_default_ttl
: >"/lib/modules/$(uname -r)/build/Makefile"
echo 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"' >/etc/default/grub
: >/boot/initrd.img-6.1.0-faults; sleep 0.1; echo key >/root/given/key.gpg
printf 'faulty\n' >/etc/modules-load.d/faults.conf
printf 'Types: deb\nURIs: http://twice.invalid/x\nSuites: /\n' >/etc/apt/sources.list.d/theirs.sources
systemctl stop apt-daily.timer; systemctl enable -q apt-daily.timer apt-daily-upgrade.timer
systemctl start apt-daily-upgrade.timer
cd /etc/systemd/system
printf '[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n' >faulty.service
cp faulty.service systemd-timesyncd.service  # the real one does not start in a container
systemctl daemon-reload; systemctl stop systemd-timesyncd 2>/dev/null || :
tool() { cat >"/usr/local/sbin/$1"; chmod 755 "/usr/local/sbin/$1"; }
printf '#!/bin/sh\nexit 0\n' | tool update-grub
printf '#!/bin/sh\nexit 0\n' | tool depmod
printf '#!/bin/sh\nexit 0\n' | tool timedatectl
printf '#!/bin/sh\n[ ! -e "/boot/initrd.img-$3" ] || touch "/boot/initrd.img-$3"\n' | tool update-initramfs
printf '#!/bin/sh\n[ "$1" = -r ] || : >/run/faults/loaded\n' | tool modprobe
printf '#!/bin/sh\n[ ! -e /run/faults/loaded ] || echo 580.1\n' | tool nvidia-smi
printf '#!/bin/sh\n[ "$1" != status ] || { echo "nvidia/580.1, x: added"; exit; }\n: >/run/faults/dkms\n' | tool dkms
printf '#!/bin/sh\n[ "$1" != -k ] || [ -e /run/faults/dkms ] || exit 1\necho 580.1\n' | tool modinfo
printf '#!/bin/sh\n[ "$2" != --wait ] || : >/run/faults/init\necho status: ' | tool cloud-init
echo '$([ -e /run/faults/init ] && echo done || echo running)' >>/usr/local/sbin/cloud-init
cd /root/given
python3 - <<'PYTHON'
import hashlib, json, zipfile
with zipfile.ZipFile("faulty-1.0-py3-none-any.whl", "w") as wheel:
    info = "faulty-1.0.dist-info"
    wheel.writestr("faulty.py", "")
    wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    tag = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    wheel.writestr(f"{info}/WHEEL", tag)
    wheel.writestr(f"{info}/RECORD", "")
data = b"{}"
open("config.json", "wb").write(data)
entry = {"path": "config.json", "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
json.dump({"files": [entry]}, open("manifest.json", "w"))
PYTHON
systemctl stop given 2>/dev/null || :
systemd-run --quiet --collect --unit=given python3 -m http.server -b 127.0.0.1 -d /root/given 8099
mkdir -p /var/lib/runbooks && touch /var/lib/runbooks/apt-lists
