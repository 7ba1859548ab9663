# Sourced by the other scripts: makes .venv with swapmoe in it, from nothing but Python >= 3.11.
# EXTRA names the extra to install ("dev" for the tests, empty for use).

set -eu

say() { printf '%s\n' "$*" >&2; }

find_python() {
    for candidate in python3.14 python3.13 python3.12 python3.11 python3 python; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    say "error: no Python 3.11 or newer"
    say "hint: install python3 and its venv module, then run this again"
    exit 4
}

# CMake and Ninja from the system, or as wheels where absent or too old
build_tools() {
    if ! cmake --version 2>/dev/null | awk 'NR == 1 { split($3, v, "."); exit !(v[1] > 3 || (v[1] == 3 && v[2] >= 14)) }'; then
        printf 'cmake '
    fi
    command -v ninja >/dev/null 2>&1 || printf 'ninja '
}

for tool in git c++; do
    if ! command -v "$tool" >/dev/null 2>&1; then
        say "error: $tool is missing"
        say "hint: install git and a C++17 compiler (Debian: apt-get install git g++)"
        exit 4
    fi
done

extra=${EXTRA:+[$EXTRA]}
stamp=.venv/stamp${EXTRA:+-$EXTRA}
wanted=$(cat pyproject.toml constraints.txt; pwd; build_tools)
if [ "$wanted" != "$(cat "$stamp" 2>/dev/null || true)" ]; then
    say "setting up .venv"
    python=$(find_python)
    "$python" -m venv .venv
    # shellcheck disable=SC2046 # a list of words on purpose
    .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        -c constraints.txt -e ".$extra" $(build_tools)
    printf '%s' "$wanted" >"$stamp"
fi
