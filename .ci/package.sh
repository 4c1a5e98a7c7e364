#!/usr/bin/env bash
# Builds the wheel and the source archive into dist/, and tries each where a user would be: in an
# environment of its own, outside of the checkout, with what jaxeff itself needs and no extra.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:-python3}
venv=${JAXEFF_VENV:-.venv}
rm -rf dist
"$venv/bin/python" -m hatchling build >/dev/null
here=$PWD
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
for archive in "$here"/dist/*.whl "$here"/dist/*.tar.gz; do
  "$python" -m venv --clear new
  new/bin/python -m pip install --quiet -c "$here/constraints.txt" "$archive"
  new/bin/python "$here/.ci/try.py"
  echo "works: $(basename "$archive")"
done
