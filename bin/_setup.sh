# Sourced by the scripts beside it, after `cd` to the repository's root. `set_up KIND` finds a
# Python and has bin/setup.py bring everything up to date; what it says goes to stderr.

set_up() {
    # Else 1,500 modules are compiled again at every start, which takes longer than all the rest.
    unset PYTHONDONTWRITEBYTECODE
    if [ -x .venv/bin/python ]; then
        python=.venv/bin/python
    else
        python=$(find_python) || exit 2
    fi
    "$python" bin/setup.py "$1" >&2 || exit
}

find_python() {
    for candidate in ${HEADROOM_PYTHON:-python3 python3.11 python3.12 python3.13 python3.14}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "Headroom needs Python 3.11 or newer, and found none on the PATH; install it," \
        "or name it in HEADROOM_PYTHON." >&2
    return 1
}
