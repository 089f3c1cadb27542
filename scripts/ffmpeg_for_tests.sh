#!/bin/sh
# ffmpeg from the distribution's packages, for the tests of the commands that error messages recommend.
set -u
command -v ffmpeg >/dev/null && exit 0
command -v apt-get >/dev/null || { echo "no ffmpeg and no apt-get: tests of recommended commands are skipped" >&2; exit 0; }
if [ "$(id -u)" = 0 ]; then root=; elif sudo -n true 2>/dev/null; then root="sudo -n"; else
	echo "no ffmpeg, and no right to install it (apt-get install ffmpeg): tests of recommended commands are skipped" >&2
	exit 0
fi
echo "installing ffmpeg" >&2
install() { $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ffmpeg >/dev/null 2>&1; }
install || { $root apt-get update -qq >/dev/null 2>&1 && install; } ||
	echo "ffmpeg cannot be installed here: tests of recommended commands are skipped" >&2
