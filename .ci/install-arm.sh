#!/bin/sh
# Installs what the ARM tests need: the aarch64 cross linker and qemu's user-mode emulator.
# Does nothing where both are there. Where it may not install (no apt, not root), it says what is
# missing and still succeeds: without them those tests are skipped.
set -eu

missing=""
command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 || missing="gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
command -v qemu-aarch64 >/dev/null 2>&1 || missing="$missing qemu-user"
missing="${missing# }"

if [ -z "$missing" ]; then
    echo "ARM tools: already installed"
elif [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "ARM tools: missing $missing; as root on Debian or Ubuntu: apt-get install $missing"
else
    echo "ARM tools: installing $missing"
    export DEBIAN_FRONTEND=noninteractive
    # A third-party source that fails must not stop this; the install below tells if it mattered.
    apt-get update -qq || echo "ARM tools: some package lists could not be read"
    # shellcheck disable=SC2086 (a list of packages)
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
