//! Runners from faulty servers.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use oci_hooks_files::error::chain;
use oci_hooks_host::trash::Trash;
use oci_hooks_image::{Digest, LayerLimits, Secret};
use oci_hooks_testsupport::http::WebResponse;

use super::*;
use crate::boot::Forge;
use crate::bootstrap::RunnerArchive;
use crate::http::fake::{FakeServer, cut_reply, no_reply, reply};
use crate::http::{HttpClient, HttpOptions, HttpRetry};

mod kept;
mod pace;

const SECRET: &str = "S3CRET";
const HOUR: Duration = Duration::from_secs(3600);

fn tool(server: &FakeServer, filename: &str, archive: &[u8]) -> RunnerArchive {
    RunnerArchive {
        os: "linux".to_owned(),
        architecture: "x64".to_owned(),
        download_url: server.url(&format!("/{filename}?sig={SECRET}")),
        filename: filename.to_owned(),
        token: None,
        sha256: Some(Digest::of(archive).hex().to_uppercase()),
    }
}

const GITHUB: &str = "actions-runner-linux-x64-2.330.0.tar.gz";
const GITEA: &str = "act_runner-0.2.13-linux-amd64";

/// Archive entry: name, mode, type, and the target of a link or the content.
type ArchiveEntry<'a> = (&'a str, u32, u8, &'a str);

fn archive(entries: &[ArchiveEntry<'_>]) -> Vec<u8> {
    let mut tar = Vec::new();
    for (name, mode, kind, content) in entries {
        let mut header = tar::Header::new_gnu();
        let bytes = header.as_mut_bytes();
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        header.set_mode(*mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        header.set_entry_type(tar::EntryType::new(*kind));
        let mut data: &[u8] = b"";
        match kind {
            b'1' | b'2' => {
                header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
            }
            b'3' => {
                header.set_device_major(0).unwrap();
                header.set_device_minor(0).unwrap();
            }
            _ => data = content.as_bytes(),
        }
        header.set_size(data.len() as u64);
        header.set_cksum();
        tar.extend_from_slice(header.as_bytes());
        tar.extend_from_slice(data);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.resize(tar.len() + 1024, 0);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tar).unwrap();
    gzip.finish().unwrap()
}

fn runner() -> Vec<u8> {
    archive(&[
        ("./", 0o700, b'5', ""),
        ("./run.sh", 0o4755, b'0', "#!/bin/sh\n"),
        ("./bin/Runner.Listener", 0o755, b'0', &"listens".repeat(9999)),
        ("./.wh.file", 0o644, b'0', "plain"),
        ("./node", 0o777, b'2', "externals/node24"),
    ])
}

/// Serves an archive for every request.
fn server_of(archive: &[u8]) -> FakeServer {
    let archive = archive.to_vec();
    FakeServer::serve(move |_| WebResponse::ok(archive.clone()))
}

/// A runner cache in a temporary directory.
struct RunnerFixture {
    dir: tempfile::TempDir,
    http: HttpClient,
    options: RunnerDownloadOptions,
}

impl RunnerFixture {
    fn new() -> Self {
        let retry = HttpRetry { attempts: 3, pause: Duration::ZERO };
        RunnerFixture {
            dir: tempfile::tempdir().unwrap(),
            http: HttpClient::new(&HttpOptions::default()).unwrap(),
            options: RunnerDownloadOptions { retry, ..RunnerDownloadOptions::default() },
        }
    }

    fn runners(&self) -> RunnerCache {
        let dir = self.dir.path();
        RunnerCache::new(dir.join("runners"), self.options, Trash::of(dir))
    }

    fn prepare(&self, tool: &RunnerArchive) -> Result<RunnerLayer, RunnerError> {
        self.runners().prepare(tool, (1001, 1002), &self.http)
    }

    /// Returns the error, and asserts that no files are left and no secret is printed.
    fn fail(&self, tool: &RunnerArchive) -> String {
        let message = chain(&self.prepare(tool).unwrap_err());
        assert_eq!(self.list_leftovers(), ["locks"], "{message}");
        assert!(!message.contains(SECRET), "{message}");
        message
    }

    fn list_leftovers(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("runners")).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn runner_is_downloaded_once_and_becomes_a_layer() {
    let archive = runner();
    let server = server_of(&archive);
    let fixture = RunnerFixture::new();
    let mut tool = tool(&server, GITHUB, &archive);
    tool.token = Some(Secret::new("T0KEN"));
    let layer = fixture.prepare(&tool).unwrap();
    assert_eq!(fixture.prepare(&tool).unwrap(), layer);
    assert_eq!(server.seen_requests().len(), 1);
    assert_eq!(server.seen_requests()[0].header("authorization"), Some("Bearer T0KEN"));

    assert_eq!(layer.runner.dir, Path::new("/home/runner/actions-runner"));
    assert_eq!(layer.runner.program, Path::new("/home/runner/actions-runner/run.sh"));
    assert_eq!(layer.runner.forge, Forge::Github);
    let found = locate(std::slice::from_ref(&layer.path), None).unwrap().unwrap();
    assert_eq!(found, layer.runner);

    let look = |path: &str| {
        let meta = fs::symlink_metadata(layer.path.join(path)).unwrap();
        (meta.permissions().mode() & 0o7777, (meta.uid(), meta.gid()))
    };
    let is_root = rustix::process::geteuid().is_root();
    let own = |id: (u32, u32)| {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        if is_root { id } else { (uid.as_raw(), gid.as_raw()) }
    };
    let runner = "home/runner/actions-runner";
    assert_eq!(look(""), (0o755, own((0, 0))));
    assert_eq!(look("home"), (0o755, own((0, 0))));
    assert_eq!(look("home/runner"), (0o755, own((1001, 1002))));
    // The set-user-ID bit is removed.
    assert_eq!(look(&format!("{runner}/run.sh")), (0o755, own((1001, 1002))));
    assert_eq!(look(&format!("{runner}/bin")), (0o755, own((1001, 1002))));
    assert_eq!(look(&format!("{runner}/node")).1, own((1001, 1002)));
    assert_eq!(fs::read(layer.path.join(runner).join(".wh.file")).unwrap(), b"plain");

    assert_eq!(fixture.list_leftovers(), ["locks", layer.key.as_str()]);
    assert!(layer.key.ends_with("-1001-1002"), "{}", layer.key);
    let record = fs::read_to_string(layer.path.with_file_name("runner.json")).unwrap();
    assert!(record.contains(GITHUB) && !record.contains(SECRET), "{record}");
}

#[test]
fn archive_with_a_wrong_checksum_is_discarded() {
    let server = FakeServer::serve(|request| match request.path.starts_with("/page") {
        true => WebResponse::ok(b"<html>Log in first</html>"),
        false => WebResponse::ok(runner()),
    });
    let fixture = RunnerFixture::new();
    for name in ["page-act_runner", "page.tar.gz", GITHUB, GITEA] {
        let wanted = RunnerArchive { ..tool(&server, name, b"another") };
        let message = fixture.fail(&wanted);
        let expected = format!("expected {}", Digest::of(b"another").hex());
        assert!(message.contains(&expected) && message.contains(&server.url("/")), "{message}");
    }
    let message =
        fixture.fail(&RunnerArchive { sha256: Some("abc".into()), ..tool(&server, GITHUB, b"") });
    assert!(message.contains("\"abc\""), "{message}");
}

#[test]
fn archive_without_a_runner_is_rejected() {
    let server = FakeServer::serve(|request| match &*request.path {
        "/empty" => WebResponse::ok(b""),
        "/other" => WebResponse::ok(archive(&[("config.sh", 0o755, b'0', "")])),
        "/link" => WebResponse::ok(archive(&[("run.sh", 0o777, b'2', "/bin/sh")])),
        "/act_runner" => WebResponse::ok(archive(&[("LICENSE", 0o644, b'0', "")])),
        _ => WebResponse::ok(b"<html>Log in first</html>"),
    });
    let fixture = RunnerFixture::new();
    for (name, expected) in [
        ("page", "cannot unpack the runner from"),
        ("act_runner.html", "cannot unpack the runner from"),
        ("empty", "is not a runner archive: run.sh is missing"),
        ("other", "is not a runner archive: run.sh is missing"),
        ("link", "is not a runner archive: run.sh is missing"),
        ("act_runner", "is not a runner archive: act_runner is missing"),
    ] {
        let tool = tool(&server, name, b"");
        let url = server.url(&format!("/{name}"));
        let message = fixture.fail(&RunnerArchive { sha256: None, download_url: url, ..tool });
        assert!(message.contains(expected), "{name}: {message}");
    }
}

#[test]
fn interrupted_download_resumes() {
    let archive = runner();
    let half = archive.len() / 2;
    for knows_ranges in [true, false] {
        let server = FakeServer::serve({
            let archive = archive.clone();
            let mut count = 0;
            move |request| {
                count += 1;
                match (count, request.header("range")) {
                    (1, None) => cut_reply(archive.clone(), half),
                    (2, Some(_)) => no_reply(),
                    (3, Some(range)) if knows_ranges => {
                        assert_eq!(range, format!("bytes={half}-"));
                        let all = archive.len();
                        let range = format!("bytes {half}-{}/{all}", all - 1);
                        reply(206, &archive[half..]).with("content-range", &range)
                    }
                    (3, Some(_)) => WebResponse::ok(archive.clone()),
                    other => panic!("{other:?}"),
                }
            }
        });
        let fixture = RunnerFixture::new();
        fixture.prepare(&tool(&server, GITHUB, &archive)).unwrap();
        assert_eq!(server.seen_requests().len(), 3);
    }
}

#[test]
fn interruption_within_resumed_data_is_retried_once() {
    let archive = runner();
    let half = archive.len() / 2;
    let server = FakeServer::serve({
        let archive = archive.clone();
        let mut count = 0;
        move |_| {
            count += 1;
            let sent = [half, half / 2, archive.len()][count - 1];
            cut_reply(archive.clone(), sent)
        }
    });
    RunnerFixture::new().prepare(&tool(&server, GITHUB, &archive)).unwrap();
    assert_eq!(server.seen_requests().len(), 3);
}

#[test]
fn slow_archive_is_waited_for() {
    let archive = runner();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/{GITHUB}", listener.local_addr().unwrap());
    let sending = std::thread::spawn({
        let archive = archive.clone();
        move || {
            let mut stream = listener.accept().unwrap().0;
            stream.set_nodelay(true).unwrap();
            // Without `Content-Length`, the body ends with the connection.
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
            archive.chunks(1).for_each(|byte| stream.write_all(byte).unwrap());
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            // If the socket were closed before the request is read, the connection would be reset.
            drop(std::io::copy(&mut stream, &mut std::io::sink()));
        }
    });
    let tool = RunnerArchive { download_url: url, ..tool(&server_of(b""), GITHUB, &archive) };
    RunnerFixture::new().prepare(&tool).unwrap();
    sending.join().unwrap();
}

#[test]
fn file_changed_during_the_download_is_an_error() {
    let archive = runner();
    let server = FakeServer::serve({
        let archive = archive.clone();
        move |request| match request.header("range") {
            None => cut_reply(archive.clone(), 1000),
            Some(_) => WebResponse::ok([0_u8; 5000]),
        }
    });
    let message = RunnerFixture::new().fail(&tool(&server, GITHUB, &archive));
    assert!(message.ends_with("the file has changed on the server"), "{message}");
    assert_eq!(server.seen_requests().len(), 2);
}

#[test]
fn recovering_server_is_retried_and_rejecting_one_is_not() {
    let archive = runner();
    let server = FakeServer::serve({
        let archive = archive.clone();
        let mut count = 0;
        move |_| {
            count += 1;
            if count < 3 { WebResponse::status(500) } else { WebResponse::ok(archive.clone()) }
        }
    });
    RunnerFixture::new().prepare(&tool(&server, GITHUB, &archive)).unwrap();
    assert_eq!(server.seen_requests().len(), 3);

    for (status, tries) in [(401, 1), (404, 1), (502, 3)] {
        let server = FakeServer::serve(move |_| reply(status, b"no"));
        let message = RunnerFixture::new().fail(&tool(&server, GITHUB, &archive));
        assert!(message.contains(&format!("/{GITHUB}: {status}: no")), "{message}");
        assert_eq!(server.seen_requests().len(), tries, "{status}");
    }
}

#[test]
fn repeated_interruptions_are_an_error() {
    let server = FakeServer::serve(|_| cut_reply(runner(), 2));
    let tool = RunnerArchive { sha256: None, ..tool(&server, GITHUB, b"") };
    let message = RunnerFixture::new().fail(&tool);
    assert!(message.contains("failed after 2 bytes"), "{message}");
    assert_eq!(server.seen_requests().len(), 3);
}

#[test]
fn download_is_limited_in_size_and_time() {
    let archive = runner();
    let server = server_of(&archive);
    let tool = tool(&server, GITHUB, &archive);
    let mut fixture = RunnerFixture::new();
    fixture.options.archive_bytes = 100;
    assert!(fixture.fail(&tool).contains("the limit of 100 bytes"));
    let mut fixture = RunnerFixture::new();
    fixture.options.limits = LayerLimits { bytes: 10_000, ..LayerLimits::default() };
    assert!(fixture.fail(&tool).contains("exceeds the limit of 10000 bytes"));
    let mut fixture = RunnerFixture::new();
    fixture.options.limits = LayerLimits { entries: 2, ..LayerLimits::default() };
    assert!(fixture.fail(&tool).contains("exceeds the limit of 2 entries"));
    let mut fixture = RunnerFixture::new();
    fixture.options.timeout = Duration::ZERO;
    let seen = server.seen_requests().len();
    let message = fixture.fail(&tool);
    assert!(message.contains("timed out after 0 s with 0 bytes"), "{message}");
    assert_eq!(server.seen_requests().len(), seen);
}

#[test]
fn token_is_sent_only_to_its_server() {
    let archive = runner();
    let other = server_of(&archive);
    let location = other.url("/real");
    let server = FakeServer::serve(move |_| reply(302, "").with("location", &location));
    let tool =
        RunnerArchive { token: Some(Secret::new(SECRET)), ..tool(&server, GITHUB, &archive) };
    RunnerFixture::new().prepare(&tool).unwrap();
    let bearer = format!("Bearer {SECRET}");
    assert_eq!(server.seen_requests()[0].header("authorization"), Some(&*bearer));
    assert_eq!(other.seen_requests()[0].header("authorization"), None);
}

#[test]
fn archive_entries_stay_within_the_directory() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().to_str().unwrap();
    for entries in [
        vec![("../escaped", 0o644, b'0', "")],
        vec![("out", 0o777, b'2', target), ("out/escaped", 0o644, b'0', "")],
        vec![("up", 0o777, b'2', "../../.."), ("up/escaped", 0o644, b'0', "")],
        vec![("hard", 0o644, b'1', "../../../runner.json")],
        vec![("hidden", 0o644, b'3', "")],
        vec![("pipe", 0o644, b'6', "")],
    ] {
        let mut all = vec![("run.sh", 0o755, b'0', "")];
        all.extend(&entries);
        let archive = archive(&all);
        let fixture = RunnerFixture::new();
        let server = server_of(&archive);
        let tool = tool(&server, GITHUB, &archive);
        if entries[0].0 == "up" {
            // The symlink is resolved with the runner's directory as root.
            let layer = fixture.prepare(&tool).unwrap();
            let runner = layer.path.join("home/runner/actions-runner");
            assert!(runner.join("escaped").exists());
        } else {
            let message = fixture.fail(&tool);
            assert!(message.contains(entries[0].0), "{message}");
        }
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn gitea_runner_is_a_program_or_an_archive() {
    let program = b"\x7fELF and so on".to_vec();
    let packed = archive(&[
        ("README.md", 0o644, b'0', ""),
        ("gitea-runner-1.0-linux-amd64", 0o755, b'0', "\x7fELF and so on"),
    ]);
    for (name, content) in [(GITEA, program.clone()), ("gitea-runner-1.0.tar.gz", packed)] {
        let server = server_of(&content);
        let fixture = RunnerFixture::new();
        let layer = fixture.prepare(&tool(&server, name, &content)).unwrap();
        assert_eq!(layer.runner.forge, Forge::Gitea);
        assert_eq!(layer.runner.program, Path::new("/home/runner/act_runner/act_runner"));
        let path = layer.path.join("home/runner/act_runner/act_runner");
        assert_eq!(fs::read(&path).unwrap(), program);
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(meta.permissions().mode() & 0o7777, 0o755);
        if rustix::process::geteuid().is_root() {
            assert_eq!((meta.uid(), meta.gid()), (1001, 1002));
        }
    }
}

#[test]
fn stopped_download_does_not_block_another() {
    let archive = runner();
    let (go, wait) = mpsc::channel();
    let (begun, reached) = mpsc::channel();
    let stopped = FakeServer::serve({
        let archive = archive.clone();
        move |_| {
            begun.send(()).unwrap();
            wait.recv().unwrap();
            WebResponse::ok(archive.clone())
        }
    });
    let server = server_of(&archive);
    let mut fixture = RunnerFixture::new();
    fixture.options.overtake_after = Duration::from_millis(20);
    let layer = std::thread::scope(|scope| {
        let first = scope.spawn(|| fixture.prepare(&tool(&stopped, GITHUB, &archive)).unwrap());
        reached.recv().unwrap();
        let second = fixture.prepare(&tool(&server, GITHUB, &archive)).unwrap();
        let pruned = fixture.runners().prune(&BTreeSet::new(), Duration::ZERO).unwrap();
        assert_eq!(pruned.count, 0, "the first has the lock");
        go.send(()).unwrap();
        assert_eq!(first.join().unwrap(), second);
        assert!(second.runner.program.starts_with("/home/runner") && second.path.is_dir());
        second
    });
    assert_eq!(fixture.list_leftovers(), ["locks", layer.key.as_str()]);
}

#[test]
fn concurrent_calls_download_once() {
    let archive = runner();
    let server = server_of(&archive);
    let fixture = RunnerFixture::new();
    let tool = tool(&server, GITHUB, &archive);
    let layers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| fixture.prepare(&tool).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(layers.iter().all(|layer| *layer == layers[0]));
    assert_eq!(server.seen_requests().len(), 1);
}
