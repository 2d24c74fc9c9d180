#!/usr/bin/env bash
# Builds llama.cpp's llama-bench, and writes a random model of the 35B's shape for it to measure, both into DIR.
#
#   bench/llama.sh DIR [native|avx512|avx2]    then: bench/run.py MODEL RESULT --llama DIR/build/bin --gguf DIR/35b.gguf
#
# The source is the one that llama-cpp-python 0.3.36 carries on PyPI. Takes a compiler, Python and 20.5 GB. For measuring
# only: none of it enters the project.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: $0 DIR [native|avx512|avx2]" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
off="-DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF"
# For a machine without a compiler, and the processor it has.
static="-DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON
  -DCMAKE_EXE_LINKER_FLAGS=-static"
case ${2:-native} in
  native) flags=$off ;;
  avx2) flags="$off $static" ;;
  avx512) flags="$off $static -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON" ;;
  *) echo "$2 is none of native, avx512, avx2" >&2; exit 2 ;;
esac
[ -d venv ] || python3 -m venv venv
. venv/bin/activate
pip install --quiet scikit-build-core cmake ninja numpy pyyaml
if [ ! -d llama_cpp_python-0.3.36 ]; then
  pip download --quiet --no-deps --no-binary :all: --no-build-isolation llama-cpp-python==0.3.36
  tar xf llama_cpp_python-0.3.36.tar.gz
  rm llama_cpp_python-0.3.36.tar.gz
fi
source=$PWD/llama_cpp_python-0.3.36/vendor/llama.cpp
# shellcheck disable=SC2086 # flags are several words
cmake -S "$source" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release $flags
ninja -C build llama-bench
[ -e 35b.gguf ] || PYTHONPATH=$source/gguf-py python3 "$here/make_synth_gguf.py" 35b.gguf
