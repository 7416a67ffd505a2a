#!/usr/bin/env python3
"""registry.py PORT: serves one image, `busybox`, made of this machine's busybox, as registries do.

Told to anybody on 127.0.0.1, without TLS and logins. Says `ready` when it listens.
"""
import gzip
import hashlib
import http.server
import io
import json
import sys
import tarfile

BUSYBOX = "/bin/busybox"
APPLETS = "cat dd env false find grep id ls mkdir nc printf rm seq sh sleep stat test touch true wget".split()
DIRECTORIES = "bin dev etc home proc root sys tmp".split()


def layer():
    """Returns an archive of a root file system."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in DIRECTORIES:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
        with open(BUSYBOX, "rb") as program:
            entry = archive.gettarinfo(fileobj=program, arcname="bin/busybox")
            entry.mode, entry.uid, entry.gid, entry.uname, entry.gname = 0o755, 0, 0, "", ""
            archive.addfile(entry, program)
        for name in APPLETS:
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(entry)
        passwd = b"root:x:0:0::/root:/bin/sh\nweb:x:33:33::/home:/bin/sh\n"
        entry = tarfile.TarInfo("etc/passwd")
        entry.size = len(passwd)
        archive.addfile(entry, io.BytesIO(passwd))
        # Not every image is of root.
        entry = tarfile.TarInfo("home/of-web")
        entry.uid, entry.gid, entry.mode = 33, 33, 0o644
        archive.addfile(entry)
    return out.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def image():
    """Returns blobs by their digests, and the manifest."""
    plain = layer()
    packed = gzip.compress(plain, mtime=0)
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": {"Cmd": ["sh"]},
        "rootfs": {"type": "layers", "diff_ids": [digest(plain)]},
    }).encode()
    media = "application/vnd.oci.image."
    part = lambda kind, data: {"mediaType": media + kind, "digest": digest(data), "size": len(data)}
    manifest = json.dumps({
        "schemaVersion": 2, "mediaType": media + "manifest.v1+json",
        "config": part("config.v1+json", config), "layers": [part("layer.v1.tar+gzip", packed)],
    }).encode()
    return {digest(config): config, digest(packed): packed}, manifest


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        blobs, manifest = self.server.image
        kind, data = "application/octet-stream", blobs.get(self.path.rsplit("/", 1)[1])
        if self.path == "/v2/":
            data = b"{}"
        elif "/manifests/" in self.path:
            kind, data = "application/vnd.oci.image.manifest.v1+json", manifest
        self.send_response(200 if data is not None else 404)
        data = data or b""
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if "/manifests/" in self.path:
            self.send_header("Docker-Content-Digest", digest(data))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
server.image = image()
print("ready", flush=True)
server.serve_forever()
