#!/bin/sh
# PID 1 of the guest. Its root is the host's, read-only; a tmpfs above it takes all writes.
# Nothing on the kernel's command line differs from run to run, as that would enter into the
# guest's random numbers: what is to be done is in the directory in which the host started us.
# That is why /proc/self is read while it is still the host's. The settings are `modules`, and the
# folders that can be written to as arguments.
control=$(readlink /proc/self/cwd)
. "$control/settings"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# util-linux 2.39 and later configure a mount by fsconfig(2), with which hostfs (Linux 6.12) does not
# take the host's path.
export LIBMOUNT_FORCE_MOUNT2=always

fail() {
    echo "guest: $1" >/dev/tty1
    . "$control/power_off"
}

mount -t proc proc /proc || fail "no /proc"
mount -t tmpfs tmpfs /mnt || fail "no tmpfs on /mnt"
new=/mnt/new
mkdir -p /mnt/above /mnt/work $new
[ -z "$modules" ] || insmod "$modules/kernel/fs/overlayfs/overlay.ko"
mount -t overlay -o lowerdir=/,upperdir=/mnt/above,workdir=/mnt/work overlay $new || fail "no overlay"
for each in proc:proc sysfs:sys tmpfs:run devtmpfs:dev; do
    mount -t "${each%:*}" "${each%:*}" "$new/${each#*:}"
done
ln -s /proc/self/fd $new/dev/fd
mkdir -p $new/dev/pts $new/dev/shm $new/dev/net $new/run/lock $new/run/home
mount -t devpts devpts $new/dev/pts
mount -t tmpfs tmpfs $new/dev/shm
[ -e $new/dev/net/tun ] || mknod $new/dev/net/tun c 10 200
mount -t cgroup2 none $new/sys/fs/cgroup
if [ -n "$modules" ]; then
    mkdir -p $new/lib/modules
    ln -sfn "$modules" "$new/lib/modules/$(uname -r)"
fi
# The only places of the host that can be written to. hostfs itself would take them as an option,
# in which mount does not pass on every path: so the whole is mounted once, out of reach of the
# command, and the folders are bound from there.
mkdir -p /mnt/host
mount -t hostfs none /mnt/host || fail "no hostfs on /mnt/host"
for shared in "$control" "$@"; do
    mkdir -p "$new$shared"
    mount --bind "/mnt/host$shared" "$new$shared" || fail "cannot mount $shared"
done
umount -l /mnt/host
# Moved, and not only entered by chroot: who joins a mount namespace starts at its topmost root.
cd $new || fail "no root"
mount -n --move . /
exec chroot . /bin/bash "$control/command"
