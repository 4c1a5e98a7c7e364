#!/usr/bin/env bash
# Makes the environment that `make` runs everything in, or leaves it as it is: where a copy of
# pyproject.toml and constraints.txt lies in it, with the folder that it was made for, nothing is
# done and no network is needed.
#
#     bash .ci/environment.sh [PYTHON]      # an environment of PYTHON in $JAXEFF_VENV, or in .venv
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:-python3}
venv=${JAXEFF_VENV:-.venv}
stamp="$venv/jaxeff-made-of"
now=$(pwd && cat pyproject.toml constraints.txt)
if [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$now" = "$(cat "$stamp")" ]; then
  exit 0
fi

fail() {
  echo "jaxeff: $1" >&2
  exit 1
}
install="on Debian or Ubuntu, as root: apt-get install -y git make gcc python3-venv"
command -v gcc >/dev/null || command -v cc >/dev/null || fail "there is no C compiler; $install"
if [ ! -x "$venv/bin/python" ]; then
  command -v "$python" >/dev/null || fail "there is no $python; $install"
  "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' ||
    fail "$("$python" --version) is none of 3.11 to 3.14; name one that is: make PYTHON=python3.12"
  "$python" -m venv "$venv" || fail "no environment could be made in $venv; $install"
fi
bash .ci/install-arm.sh || echo "ARM tools: not installed; everything but ARM works without"
echo "jaxeff: installing into $venv (2 GB, a few minutes)"
"$venv/bin/python" -m pip install --quiet -c constraints.txt -e ".[all]"
# The emulated board is set up here, once, since that takes a network and the demo takes none.
if command -v qemu-aarch64 >/dev/null && command -v aarch64-linux-gnu-gcc >/dev/null; then
  "$venv/bin/python" -m jaxeff_export prepare ||
    echo "jaxeff: there is no emulated board; the demo leaves out its ARM part"
fi
printf '%s\n' "$now" >"$stamp"
