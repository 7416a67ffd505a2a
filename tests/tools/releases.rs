//! A server with a release that contains the program under test.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::env::{PROGRAM, VERSION, find};

pub(crate) struct ReleaseServer {
    /// Base URL.
    pub(crate) url: String,
    directory: PathBuf,
}

impl ReleaseServer {
    /// Creates a release in a new directory, and serves it.
    pub(crate) fn serve(directory: &Path) -> Self {
        let name = archive_name();
        let release = directory.join(format!("v{VERSION}"));
        let bin = release.join(&name).join("bin");
        fs::create_dir_all(&bin).unwrap();
        let program = bin.join("oci-hooks");
        fs::write(&program, format!("#!/bin/sh\nexec '{PROGRAM}' \"$@\"\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let script = format!(
            "tar -czf {name}.tar.gz {name} && rm -r {name} && sha256sum {name}.tar.gz >SHA256SUMS && \
             echo {zeros}  {name}.tar.gz.sig >>SHA256SUMS",
            zeros = "0".repeat(64)
        );
        let made = Command::new(find("sh")).args(["-c", &script]).current_dir(&release).status();
        assert!(made.unwrap().success());

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let served = directory.to_owned();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = answer(&stream.unwrap(), &served);
            }
        });
        ReleaseServer { url, directory: release }
    }

    /// Returns the digest of the archive.
    pub(crate) fn sha256_of_archive(&self) -> String {
        let archive = self.directory.join(format!("{}.tar.gz", archive_name()));
        let output = Command::new(find("sha256sum")).arg(archive).output().unwrap();
        String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
    }

    /// Removes a file of the release.
    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.directory.join(name)).unwrap();
    }

    /// Changes the archive, which can still be unpacked.
    pub(crate) fn tamper(&self) {
        let path = self.directory.join(format!("{}.tar.gz", archive_name()));
        fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"\0").unwrap();
    }
}

/// Returns the name of the archive's directory, as in `contrib/dist`.
pub(crate) fn archive_name() -> String {
    format!("oci-hooks-{VERSION}-{}-linux", std::env::consts::ARCH)
}

fn answer(mut stream: &TcpStream, directory: &Path) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let path = request.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
    let (status, body) = match fs::read(directory.join(path)) {
        Ok(body) => ("200 OK", body),
        Err(_) => ("404 Not Found", Vec::new()),
    };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len())?;
    write!(stream, "Connection: close\r\n\r\n")?;
    stream.write_all(&body)
}
