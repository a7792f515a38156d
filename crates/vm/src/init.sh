#!/bin/busybox sh
# First process of a virtual machine of pagewise: mounts the usual file systems, loads modules,
# runs one command, and sends what the command printed and wrote to the host.
export PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin HOME=/ TERM=dumb
export PAGEWISE_GUEST=1 PAGEWISE_RESULTS=/pagewise/end/files
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null
ln -sf /proc/self/fd /dev/fd
mkdir -p /dev/shm /dev/pts /tmp /var/tmp
chmod 1777 /tmp /var/tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t securityfs securityfs /sys/kernel/security 2>/dev/null
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
hostname guest
ifconfig lo 127.0.0.1 up

for module in /pagewise/modules/*; do
    [ -e "$module" ] && { insmod "$module" || echo "pagewise: cannot load $module"; }
done

case "$(cat /pagewise/cgroups)" in
v2)
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
        echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
    done
    ;;
v1)
    mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
    for controller in memory cpuset cpu,cpuacct pids; do
        mkdir -p "/sys/fs/cgroup/$controller"
        mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller" ||
            rmdir "/sys/fs/cgroup/$controller"
    done
    ;;
esac

# The device of a port of virtio-serial by the name of the port.
port() {
    for entry in /sys/class/virtio-ports/*; do
        [ "$(cat "$entry/name" 2>/dev/null)" = "pagewise.$1" ] && echo "/dev/${entry##*/}"
    done
}

# The host sends the names of the ports after the driver was loaded.
tries=0
until [ -c "$(port archive)" ] && [ -c "$(port out)" ] && [ -c "$(port err)" ]; do
    tries=$((tries + 1))
    if [ "$tries" -gt 200 ]; then
        echo "pagewise: the kernel has no driver for virtio-serial"
        reboot -f
    fi
    sleep 0.05
done

mkdir -p "$PAGEWISE_RESULTS"
chmod 1777 "$PAGEWISE_RESULTS"
cd /
sh /pagewise/command </dev/null >"$(port out)" 2>"$(port err)"
echo $? >/pagewise/end/status
cd /pagewise/end && find . | cpio -o -H newc 2>/dev/null >"$(port archive)"
# QEMU ends instead of booting again.
reboot -f
