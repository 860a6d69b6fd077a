#!/bin/sh
# Dresses a lab guest as a Proxmox node: eight cards, a boot loader, and a "boot" that takes over what was written.
#   dress.sh grub|systemd-boot
set -eu
loader=$1
D=/var/lib/dressed
mkdir -p $D /boot/grub /etc/kernel
echo "$loader" >$D/loader
tool() { cat >"/usr/local/sbin/$1"; chmod 0755 "/usr/local/sbin/$1"; }

base='BOOT_IMAGE=/vmlinuz root=/dev/mapper/pve-root ro'
echo "$base quiet" >$D/next
printf 'GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""\n' >/etc/default/grub
printf 'root=ZFS=rpool/ROOT/pve-1 boot=zfs\n' >/etc/kernel/cmdline # the other loader's file is there as well, as on many nodes
printf 'vfio_virqfd\nnvidia\nloop\n' >/etc/modules

tool update-grub <<'T'
#!/bin/sh
echo update-grub >>/var/lib/dressed/calls
[ "$(cat /var/lib/dressed/loader)" = grub ] || exit 0 # not the one that boots: nothing comes of it
. /etc/default/grub
echo "BOOT_IMAGE=/vmlinuz root=/dev/mapper/pve-root ro $GRUB_CMDLINE_LINUX_DEFAULT" >/var/lib/dressed/next
T
tool proxmox-boot-tool <<'T'
#!/bin/sh
echo "proxmox-boot-tool $*" >>/var/lib/dressed/calls
case $1 in
status) echo "System currently booted with uefi"; echo "8B3C-1A2F is configured with: uefi (versions: 6.17.2-1-pve)" ;;
refresh) [ ! -e /var/lib/dressed/broken ] || { echo "E: mount failed"; exit 1; }
  [ "$(cat /var/lib/dressed/loader)" = systemd-boot ] && head -n 1 /etc/kernel/cmdline >/var/lib/dressed/next; exit 0 ;;
esac
T
tool update-initramfs <<'T'
#!/bin/sh
echo "update-initramfs $*" >>/var/lib/dressed/calls
cat /etc/modprobe.d/*.conf >/var/lib/dressed/initramfs
T
tool efibootmgr <<'T'
#!/bin/sh
[ "$(cat /var/lib/dressed/loader)" = systemd-boot ] || exit 2
printf 'BootCurrent: 0003\nBoot0003* Linux Boot Manager\tHD(2)/File(\\EFI\\systemd\\systemd-bootx64.efi)\n'
T
tool dmesg <<'T'
#!/bin/sh
cat /var/lib/dressed/dmesg 2>/dev/null
T
[ "$loader" = grub ] || { echo 8B3C-1A2F >/etc/kernel/proxmox-boot-uuids; }

cat >$D/boot <<'T'
#!/bin/sh
# What the next boot makes of it: the command line, and at each card the driver that comes first.
D=/var/lib/dressed
cp $D/next $D/cmdline
mount --bind $D/cmdline /proc/cmdline
driver=nouveau
grep -q 'options vfio-pci ids=.*10de:2bb5' $D/initramfs 2>/dev/null && driver=vfio-pci
rm -rf $D/pci $D/iommu && mkdir -p $D/pci $D/iommu/ivhd0
group=20
for bus in 01 21 41 61 81 a1 c1 e1; do
  for function in 0 1; do
    d=$D/pci/0000:$bus:00.$function
    mkdir -p "$d/power"
    put() { echo "$2" >"$d/$1"; }
    put vendor 0x10de; put subsystem_vendor 0x10de; put subsystem_device 0x204e; put numa_node 0
    put current_link_speed '32.0 GT/s PCIe'; put max_link_speed '32.0 GT/s PCIe'
    put current_link_width 16; put max_link_width 16; put reset_method 'flr bus'
    put power/control auto; put d3cold_allowed 1
    printf '\336\020' >"$d/config"
    if [ $function = 0 ]; then put device 0x2bb5; put class 0x030200
      printf '0x0 0x1 0x2\n0x0000020000000000 0x0000021fffffffff 0x14220c\n' >"$d/resource"; ln -s "../x/$driver" "$d/driver"
    else put device 0x22e8; put class 0x040300; put resource '0x0'
      [ $driver = vfio-pci ] && ln -s ../x/vfio-pci "$d/driver" || ln -s ../x/snd_hda_intel "$d/driver"; fi
    ln -s "../y/$group" "$d/iommu_group"
  done
  group=$((group + 1))
done
mount --bind $D/pci /sys/bus/pci/devices
mkdir -p $D/class && mkdir -p $D/class/iommu && cp -r $D/iommu/. $D/class/iommu/
[ ! -d /sys/class/iommu ] || mount --bind $D/class/iommu /sys/class/iommu
echo '[    1.0] iommu: Default domain type: Translated' >$D/dmesg
grep -qw iommu=pt $D/cmdline && echo '[    1.0] iommu: Default domain type: Passthrough (set via kernel command line)' >$D/dmesg
exit 0
T
cat >/etc/systemd/system/dressed.service <<'T'
[Unit]
DefaultDependencies=no
Before=ssh.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh /var/lib/dressed/boot
[Install]
WantedBy=multi-user.target
T
systemctl daemon-reload
systemctl enable --now dressed.service
