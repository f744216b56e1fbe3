#!/bin/sh
# PID 1 of a User-Mode Linux whose root is the host's, read-only: makes it a host with pure cgroup v2, runs OUT/job.sh in the checkout, and halts. See uml.ts.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
argument() { tr ' ' '\n' < /proc/cmdline | sed -n "s/^$1=//p"; }
out=$(argument out)
mount -t sysfs sys /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for module in fs/overlayfs/overlay drivers/net/tun; do
  busybox insmod "/usr/lib/uml/modules/$(uname -r)/kernel/$module.ko"
done
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=755,size=60% tmp /mnt
mkdir -p /dev/pts /dev/shm /mnt/home /mnt/tmp && chmod 1777 /mnt/tmp
mount -t devpts -o ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
# The one place that the host sees again; a mount of its own, because the root is read-only.
mount -t hostfs -o "$out" out /opt
busybox ip link set lo up
export HOME=/mnt/home TMPDIR=/mnt/tmp OUT=/opt CHECKOUT="$(argument checkout)"
cd "$CHECKOUT"
sh /opt/job.sh > /opt/log 2>&1 < /dev/null
echo $? > /opt/code
sync
echo o > /proc/sysrq-trigger
sleep 60
