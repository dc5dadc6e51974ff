#!/usr/bin/env bash
# Names what a build needs and is not here, with what to install. Run by `make`.
set -u
missing=0

need() { # command, what it is, how to get it
    command -v "$1" >/dev/null 2>&1 && return
    printf 'missing: %s (%s)\n         install it: %s\n' "$1" "$2" "$3" >&2
    missing=1
}

at_least() { # have, want: true if have >= want
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

need cargo "Rust 1.90 or newer" "https://rustup.rs"
need cc "a C compiler" "apt-get install build-essential  (or your system's gcc or clang)"
need python3 "Python 3.11 or newer" "apt-get install python3 python3-venv"

if command -v cargo >/dev/null 2>&1; then
    have=$(cargo --version | cut -d' ' -f2)
    at_least "${have%%-*}" 1.90.0 || {
        printf 'too old: cargo %s; Pelton needs 1.90 or newer\n         install it: rustup update stable\n' "$have" >&2
        missing=1
    }
fi
if command -v python3 >/dev/null 2>&1; then
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        printf 'too old: %s; Pelton needs Python 3.11 or newer as python3\n' "$(python3 --version)" >&2
        missing=1
    }
    python3 -c 'import venv, ensurepip' 2>/dev/null || {
        printf 'missing: the venv module of Python\n         install it: apt-get install python3-venv\n' >&2
        missing=1
    }
fi
exit "$missing"
