#!/bin/bash
# A fresh Debian for trying the checkout as a new user would: see --help.
#
# A plain chroot is not enough for the testbed: private mounts need a root that is a mount point,
# setns() must not lead out of it, and ptys need a devpts of their own. So the folder becomes the
# root by pivot_root in a mount namespace of its own, which takes all its mounts along when the
# command ends, however it ends.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: sudo tests/fresh/debian.sh [--keep] SUITE DIR COMMAND...

Runs COMMAND as root in a fresh Debian of this suite (bookworm, trixie), in a clone of this checkout
at /root/testbed: what is committed, nothing else. DIR is made by debootstrap (20 s, 0.3 GB) if it is
not there. Every call clones anew, but with --keep the clone of the last call stays, with its .venv.

  sudo tests/fresh/debian.sh trixie /var/tmp/trixie ./setup.sh --no-model
  sudo tests/fresh/debian.sh --keep trixie /var/tmp/trixie .venv/bin/python scenarios/wifi_loss.py --quick

The exit status is the command's. Certificates, proxies, and settings of apt and pip are this
machine's. It uses the network of this machine, as the package managers need it. Remove DIR with rm -r.
USAGE
}

die() {
    printf 'error: %s\n' "$1" >&2
    exit 2
}

keep=0
while [[ ${1:-} == -* ]]; do
    case $1 in
        --keep) keep=1 ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) die "unknown option $1; see --help" ;;
    esac
    shift
done
(($# >= 3)) || {
    usage >&2
    exit 2
}
suite=$1 root=$(realpath -m "$2")
shift 2
((EUID == 0)) || die "debootstrap and pivot_root need root: sudo $0 ..."
[[ $root != / ]] || die "DIR is the root of this machine"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)

# apt's own answer, since sources are written in two formats and in several places.
mirror() {
    apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null |
        grep -v security | head -n 1
}

if [[ ! -f $root/.made-by-debian.sh ]]; then
    [[ ! -e $root || -z $(ls -A "$root") ]] || die "$root is not empty, and was not made by this script"
    command -v debootstrap >/dev/null || apt-get install -y -qq debootstrap >/dev/null
    log=$(mktemp)
    site=$(mirror)
    # The scripts of suites that are younger than this debootstrap are all those of sid.
    script=/usr/share/debootstrap/scripts/$suite
    [[ -e $script ]] || script=/usr/share/debootstrap/scripts/sid
    if ! debootstrap --variant=minbase "$suite" "$root" ${site:+"$site"} "$script" >"$log" 2>&1; then
        tail -n 3 "$log" >&2
        die "debootstrap failed; its log is $log, its remains are in $root"
    fi
    rm "$log"
    # Tests that run as nobody must reach the environment below it.
    chmod 711 "$root/root"
    echo "$suite" >"$root/.made-by-debian.sh"
fi
made=$(<"$root/.made-by-debian.sh")
[[ $made == "$suite" ]] || die "$root is $made, not $suite"

# What this machine needs to reach its package registries.
mkdir -p "$root/root/.config" "$root/opt"
[[ ! -e /etc/ssl/certs/ca-certificates.crt ]] ||
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/opt/ca.crt"
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf; do
    [[ ! -e $file ]] || cp -L "$file" "$root/etc/"
done
[[ ! -d ~/.config/pip ]] || cp -r ~/.config/pip "$root/root/.config/"
if ((!keep)) || [[ ! -d $root/root/testbed ]]; then
    rm -rf "$root/root/testbed"
    # Another owner's checkout is no danger here: nothing of its configuration is used.
    git -c safe.directory='*' clone -q --no-hardlinks "$here" "$root/root/testbed"
fi
# In a file: "$*" would lose the quoting of the command.
printf '%q ' "$@" >"$root/root/command"

passed=(HOME=/root TERM="${TERM:-dumb}" CI="${CI:-}")
passed+=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
[[ ! -e $root/opt/ca.crt ]] || passed+=(PIP_CERT=/opt/ca.crt)
for name in {http,https,no}_proxy {HTTP,HTTPS,NO}_PROXY PIP_{INDEX_URL,DEFAULT_TIMEOUT}; do
    [[ -z ${!name:-} ]] || passed+=("$name=${!name}")
done
exec unshare --mount --propagation private bash -ec '
root=$1
shift
mount --rbind "$root" "$root"
cd "$root"
for place in proc sys dev; do mount --rbind "/$place" "$root/$place"; done
mount -t devpts -o ptmxmode=666,newinstance devpts dev/pts
mount -t tmpfs shm dev/shm
pivot_root . mnt
cd /
umount -l /mnt
exec env -i "$@" bash -c "cd /root/testbed && . /root/command"' - "$root" "${passed[@]}"
