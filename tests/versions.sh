#!/usr/bin/env bash
# Runs the tests on each Python from 3.11 to 3.14 that is found here, each with the oldest and the
# newest versions that pyproject.toml admits of jax and the other packages of the core.
#
#   tests/versions.sh                   the tests marked `core`, a few minutes for each
#   tests/versions.sh --all             the whole suite, before a release
#   tests/versions.sh -k "sweep"        other arguments go to pytest
#
# Environments are kept in .versions/ and made again when pyproject.toml or tests/oldest.txt change.
set -u
cd "$(dirname "$0")/.."
select=(-m "core and not slow")
if [ "${1:-}" = "--all" ]; then
  select=()
  shift
fi

interpreter() { # of Python 3.$1, or nothing
  local candidate
  for candidate in "python3.$1" "$(pyenv root 2>/dev/null)"/versions/3."$1".*/bin/python3; do
    if "$candidate" -c "import sys; sys.exit(sys.version_info[:2] != (3, $1))" 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
}

environment() { # made from interpreter $1 in folder $2, with constraints $3...
  local python=$1 folder=$2 stamp
  shift 2
  stamp=$(cat pyproject.toml tests/oldest.txt | cksum)
  [ "$(cat "$folder/stamp" 2>/dev/null)" = "$stamp" ] && return
  rm -rf "$folder"
  "$python" -m venv "$folder" && "$folder/bin/pip" install -q -e ".[all,dev]" "$@" &&
    echo "$stamp" >"$folder/stamp"
}

failed=0
rows=()
for minor in 11 12 13 14; do
  python=$(interpreter "$minor")
  if [ -z "$python" ]; then
    rows+=("3.$minor         not here")
    continue
  fi
  for age in oldest newest; do
    folder=.versions/3.$minor-$age
    constraints=()
    [ "$age" = oldest ] && constraints=(-c tests/oldest.txt)
    if ! environment "$python" "$folder" ${constraints[@]+"${constraints[@]}"}; then
      rows+=("3.$minor $age  could not be installed")
      failed=1
      continue
    fi
    jax=$("$folder/bin/python" -c "from importlib.metadata import version; print(version('jax'))")
    echo "== Python 3.$minor, jax $jax"
    began=$SECONDS
    "$folder/bin/python" -m pytest -n 2 -q ${select[@]+"${select[@]}"} "$@" | tee "$folder/log"
    [ "${PIPESTATUS[0]}" = 0 ] || failed=1
    rows+=("3.$minor $age  jax $jax  $((SECONDS - began)) s  $(tail -n 1 "$folder/log")")
  done
done
printf '\n'
printf '%s\n' "${rows[@]}"
exit $failed
