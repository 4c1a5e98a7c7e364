#!/bin/sh
# Installs what the ARM tests need: the aarch64 cross linker and qemu's user-mode emulator; and what
# tests of C libraries for other processors need, about 500 MB: compilers for 32-bit ARM, RISC-V and
# microcontrollers, an emulator of these, and a second compiler and CMake for this machine.
# Does nothing where all are there. Where it may not install (no apt, not root), it says what is
# missing and still succeeds: without them those tests are skipped.
set -eu

missing=""
command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 || missing="gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
command -v qemu-aarch64 >/dev/null 2>&1 || missing="$missing qemu-user"
missing="${missing# }"

# A line each: a command that tells, and the packages that bring it.
more() {
    while read -r command packages; do
        command -v "$command" >/dev/null 2>&1 || printf '%s\n' "$packages"
    done <<END
arm-linux-gnueabihf-gcc gcc-arm-linux-gnueabihf libc6-dev-armhf-cross
arm-none-eabi-gcc gcc-arm-none-eabi libnewlib-arm-none-eabi
qemu-system-arm qemu-system-arm
riscv64-linux-gnu-gcc gcc-riscv64-linux-gnu libc6-dev-riscv64-cross
riscv64-unknown-elf-gcc gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf
qemu-system-riscv32 qemu-system-misc
avr-gcc gcc-avr avr-libc
xtensa-lx106-elf-gcc gcc-xtensa-lx106 picolibc-xtensa-lx106-elf
clang clang
cmake cmake
END
}
lacking=$(more)

if [ -z "$missing$lacking" ]; then
    echo "ARM tools: already installed"
elif [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    # shellcheck disable=SC2086 (a list of packages)
    echo "ARM tools: missing; as root on Debian or Ubuntu: apt-get install" $missing $lacking
else
    export DEBIAN_FRONTEND=noninteractive
    # A third-party source that fails must not stop this; the installs below tell if it mattered.
    apt-get update -qq || echo "ARM tools: some package lists could not be read"
    if [ -n "$missing" ]; then
        echo "ARM tools: installing $missing"
        # shellcheck disable=SC2086 (a list of packages)
        apt-get install -y -qq --no-install-recommends $missing >/dev/null
    fi
    printf '%s\n' "$lacking" | while read -r packages; do
        [ -n "$packages" ] || continue
        echo "C libraries: installing $packages"
        # shellcheck disable=SC2086 (a list of packages)
        apt-get install -y -qq --no-install-recommends $packages >/dev/null 2>&1 ||
            echo "C libraries: $packages can't be had; their tests are skipped"
    done
fi
