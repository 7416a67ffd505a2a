#!/bin/bash
# What docs/container-hook.md presumes: a runner of GitHub's in its directory, and the archive of an image.
set -euo pipefail
install --directory --owner runner --group runner /home/runner/actions-runner
# An archive of the image alpine, as `docker save` writes it, with the programs of busybox.
image=$(mktemp -d)
cd "$image"
mkdir -p root/bin root/etc root/tmp
echo ID=alpine >root/etc/os-release
apt-get install --quiet --yes --no-install-recommends busybox-static >/dev/null
cp /bin/busybox root/bin/
for name in sh ls touch; do ln -s busybox "root/bin/$name"; done
tar -C root -cf layer.tar .
architecture=$(dpkg --print-architecture)
id=$(sha256sum layer.tar | cut -d' ' -f1)
cat >config.json <<END
{"architecture": "$architecture", "os": "linux", "config": {"Env": ["PATH=/bin"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$id"]}}
END
echo '[{"Config":"config.json","RepoTags":["alpine:latest"],"Layers":["layer.tar"]}]' > manifest.json
tar -cf /home/runner/alpine.tar manifest.json config.json layer.tar
rm -r "$image"
