#!/bin/sh
# Builds one image, looks through its layers, and writes its SBOM.
#
#   containers/build.sh IMAGE BASE_DIGEST TAG
#
#   IMAGE        client, generator-diffusers, generator-framework or reasoner
#   BASE_DIGEST  sha256:… of the base image that you reviewed
#   TAG          what the image is called, such as registry.example/cosmos3-client:0.1.0
#
#   BASE_IMAGE   the base's repository, where it is another than the file's
#   DOCKER, SYFT other programs than docker and syft (https://github.com/anchore/syft)
#   OUT          where the reports go (default: dist)
#
# Exit codes: 2 usage, 3 something that may not be in an image, else those of the programs.
set -eu

usage() { echo "build.sh: $1; usage: containers/build.sh IMAGE sha256:… TAG" >&2; exit 2; }

[ $# -eq 3 ] || usage "three arguments are needed"
image=$1 digest=$2 tag=$3
root=$(cd "$(dirname "$0")/.." && pwd)
docker=${DOCKER:-docker} syft=${SYFT:-syft} out=${OUT:-$root/dist}
file=$root/containers/$image.Dockerfile

case $image in client | generator-diffusers | generator-framework | reasoner) ;; *) usage "no image is called $image" ;; esac
hex=${digest#sha256:}
case $hex in "$digest" | *[!0-9a-f]*) usage "the base must be given by digest" ;; esac
[ ${#hex} -eq 64 ] || usage "the base must be given by digest"
[ -z "$(git -C "$root" status --porcelain -- src pyproject.toml hatch_build.py constraints.txt containers)" ] ||
    usage "the checkout has changes, so no commit names what would be built"
sha=$(git -C "$root" rev-parse HEAD)

mkdir -p "$out"
set -- --file "$file" --tag "$tag" --build-arg "BASE_DIGEST=$digest" --build-arg "SOURCE_SHA=$sha"
[ -z "${BASE_IMAGE:-}" ] || set -- "$@" --build-arg "BASE_IMAGE=$BASE_IMAGE"
"$docker" build "$@" "$root"
# Layer by layer: what a later layer removes is still in the image.
"$docker" save --output "$out/$image.tar" "$tag"
python3 "$root/containers/scan.py" "$out/$image.tar"
"$syft" scan "docker-archive:$out/$image.tar" --output "spdx-json=$out/$image.spdx.json"
rm -f "$out/$image.tar"
echo "built $tag from $sha; its SBOM is $out/$image.spdx.json"
