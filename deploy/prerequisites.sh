#!/usr/bin/env bash
# Names what a build needs and is not here, with what to install. Run by `make`; with the word `lint` also what its linters need.
set -u
purpose=${1:-build}
missing=0

trouble() { # what is wrong, what to do
    printf '%s\n         install it: %s\n' "$1" "$2" >&2
    missing=1
}

need() { # command, what it is, how to get it
    command -v "$1" >/dev/null 2>&1 || trouble "missing: $1 ($2)" "$3"
}

at_least() { # have, want: true if have >= want
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# Of other systems the kernel's means (futexes, memfd, pidfd) are missing, and the compiler would say so late.
system=$(uname -s 2>/dev/null || echo Linux)
if [ "$system" != Linux ]; then
    printf 'not served: %s; Pelton runs on Linux, also in a virtual machine or a container of it\n' "$system" >&2
    exit 1
fi

need cargo "Rust 1.90 or newer" "https://rustup.rs"
need cc "a C compiler" "apt-get install build-essential  (or your system's gcc or clang)"
need python3 "Python 3.11 or newer" "apt-get install python3 python3-venv"

if command -v cargo >/dev/null 2>&1; then
    # A command that is there may still not run: rustup's without a toolchain, for one.
    if have=$(cargo --version 2>&1); then
        have=$(cut -d' ' -f2 <<<"$have")
        at_least "${have%%-*}" 1.90.0 || trouble "too old: cargo $have; Pelton needs 1.90 or newer" "rustup update stable"
        if [ "$purpose" = lint ]; then
            cargo fmt --version >/dev/null 2>&1 || trouble "missing: rustfmt (cargo fmt)" "rustup component add rustfmt"
            cargo clippy --version >/dev/null 2>&1 || trouble "missing: clippy (cargo clippy)" "rustup component add clippy"
        fi
    else
        trouble "broken: cargo --version says: ${have:-nothing}" "rustup default stable  (https://rustup.rs)"
    fi
fi
if command -v python3 >/dev/null 2>&1; then
    if ! have=$(python3 -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>&1); then
        trouble "broken: python3 ($(command -v python3)) says: ${have:-nothing}" "apt-get install --reinstall python3 python3-venv"
    elif ! at_least "$have" 3.11; then
        trouble "too old: python3 is $have; Pelton needs 3.11 or newer" "a newer Python, and put it first in PATH as python3"
    else
        python3 -c 'import venv, ensurepip' 2>/dev/null ||
            trouble "missing: the venv module of Python" "apt-get install python3-venv"
    fi
fi
exit "$missing"
