//! Runners from servers that fail in every way.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use super::*;
use crate::garm::boot::Forge;
use crate::garm::bootstrap::Tool;
use crate::garm::http::fake::{Fake, Reply};
use crate::garm::http::{Http, HttpOptions, Retry};
use crate::image::{Digest, Limits, Secret};
use crate::sys::error::chain;
use crate::sys::trash::Trash;

mod kept;
mod pace;

const SECRET: &str = "S3CRET";
const HOUR: Duration = Duration::from_secs(3600);

fn tool(server: &Fake, filename: &str, archive: &[u8]) -> Tool {
    Tool {
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

/// What is called by a name, with a mode, a type, and the target of a link or a content.
type Entry<'a> = (&'a str, u32, u8, &'a str);

fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
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

/// Serves an archive, whatever is asked for.
fn server_of(archive: &[u8]) -> Fake {
    let archive = archive.to_vec();
    Fake::serve(move |_| Reply::ok(&archive))
}

struct Bench {
    dir: tempfile::TempDir,
    http: Http,
    events: Mutex<Vec<DownloadEvent>>,
    options: RunnerOptions,
}

impl Bench {
    fn new() -> Self {
        let retry = Retry { attempts: 3, pause: Duration::ZERO };
        Bench {
            dir: tempfile::tempdir().unwrap(),
            http: Http::new(&HttpOptions::default()).unwrap(),
            events: Mutex::default(),
            options: RunnerOptions { retry, ..RunnerOptions::default() },
        }
    }

    fn runners(&self) -> Runners {
        let dir = self.dir.path();
        Runners::new(dir.join("runners"), self.options, Trash::of(dir))
    }

    fn prepare(&self, tool: &Tool) -> Result<RunnerLayer, RunnerError> {
        let listener = |event| self.events.lock().unwrap().push(event);
        self.runners().prepare(tool, (1001, 1002), &self.http, &listener)
    }

    /// Returns why it fails, and sees to it that nothing is left and no secret told.
    fn fail(&self, tool: &Tool) -> String {
        let message = chain(&self.prepare(tool).unwrap_err());
        assert_eq!(self.left(), ["locks"], "{message}");
        let events = format!("{:?}", self.events.lock().unwrap());
        assert!(!message.contains(SECRET) && !events.contains(SECRET), "{message} {events}");
        message
    }

    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("runners")).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn a_runner_is_downloaded_once_and_is_a_layer_then() {
    let archive = runner();
    let server = server_of(&archive);
    let bench = Bench::new();
    let mut tool = tool(&server, GITHUB, &archive);
    tool.token = Some(Secret::new("T0KEN"));
    let layer = bench.prepare(&tool).unwrap();
    assert_eq!(bench.prepare(&tool).unwrap(), layer);
    assert_eq!(server.seen().len(), 1);
    assert_eq!(server.seen()[0].header("authorization"), Some("Bearer T0KEN"));

    assert_eq!(layer.dir, Path::new("/home/runner/actions-runner"));
    assert_eq!(layer.program, Path::new("/home/runner/actions-runner/run.sh"));
    assert_eq!(layer.forge, Forge::Github);
    let found = locate(std::slice::from_ref(&layer.path), None).unwrap().unwrap();
    assert_eq!((found.dir, found.program, found.forge), (layer.dir, layer.program, layer.forge));

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
    // No bit that makes somebody else of who runs it.
    assert_eq!(look(&format!("{runner}/run.sh")), (0o755, own((1001, 1002))));
    assert_eq!(look(&format!("{runner}/bin")), (0o755, own((1001, 1002))));
    assert_eq!(look(&format!("{runner}/node")).1, own((1001, 1002)));
    assert_eq!(fs::read(layer.path.join(runner).join(".wh.file")).unwrap(), b"plain");

    let kept = bench.runners().list().unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!((&*kept[0].name, kept[0].owner), (GITHUB, (1001, 1002)));
    assert!(kept[0].size_bytes > 60_000 && !format!("{kept:?}").contains(SECRET), "{kept:?}");
    let events = bench.events.into_inner().unwrap();
    let [DownloadEvent::Started { bytes, .. }, DownloadEvent::Done { .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(*bytes, Some(archive.len() as u64));
}

#[test]
fn what_is_not_the_archive_that_garm_wants_is_not_kept() {
    let server = Fake::serve(|request| match request.path.starts_with("/page") {
        true => Reply::ok(b"<html>Log in first</html>"),
        false => Reply::ok(&runner()),
    });
    let bench = Bench::new();
    for name in ["page-act_runner", "page.tar.gz", GITHUB, GITEA] {
        let wanted = Tool { ..tool(&server, name, b"another") };
        let message = bench.fail(&wanted);
        let expected = format!("expected {}", Digest::of(b"another").hex());
        assert!(message.contains(&expected) && message.contains(&server.url("/")), "{message}");
    }
    let message = bench.fail(&Tool { sha256: Some("abc".into()), ..tool(&server, GITHUB, b"") });
    assert!(message.contains("\"abc\""), "{message}");
}

#[test]
fn without_a_checksum_what_is_no_runner_is_refused() {
    let server = Fake::serve(|request| match &*request.path {
        "/empty" => Reply::ok(b""),
        "/other" => Reply::ok(&archive(&[("config.sh", 0o755, b'0', "")])),
        "/link" => Reply::ok(&archive(&[("run.sh", 0o777, b'2', "/bin/sh")])),
        "/act_runner" => Reply::ok(&archive(&[("LICENSE", 0o644, b'0', "")])),
        _ => Reply::ok(b"<html>Log in first</html>"),
    });
    let bench = Bench::new();
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
        let message = bench.fail(&Tool { sha256: None, download_url: url, ..tool });
        assert!(message.contains(expected), "{name}: {message}");
    }
}

#[test]
fn a_broken_connection_is_taken_up_where_it_broke() {
    let archive = runner();
    let half = archive.len() / 2;
    for knows_ranges in [true, false] {
        let server = Fake::serve({
            let archive = archive.clone();
            let mut count = 0;
            move |request| {
                count += 1;
                match (count, request.header("range")) {
                    (1, None) => Reply::ok(&archive[..half]).announce(archive.len()),
                    (2, Some(_)) => Reply::cut(),
                    (3, Some(range)) if knows_ranges => {
                        assert_eq!(range, format!("bytes={half}-"));
                        let all = archive.len();
                        let range = format!("bytes {half}-{}/{all}", all - 1);
                        Reply::status(206, &archive[half..]).with("content-range", &range)
                    }
                    (3, Some(_)) => Reply::ok(&archive),
                    other => panic!("{other:?}"),
                }
            }
        });
        let bench = Bench::new();
        bench.prepare(&tool(&server, GITHUB, &archive)).unwrap();
        let events = bench.events.into_inner().unwrap();
        let retries = events.iter().filter(|event| matches!(event, DownloadEvent::Retry { .. }));
        assert_eq!(retries.count(), 2, "{events:?}");
    }
}

#[test]
fn a_server_that_breaks_off_in_what_was_there_already_is_asked_once_more() {
    let archive = runner();
    let half = archive.len() / 2;
    let server = Fake::serve({
        let archive = archive.clone();
        let mut count = 0;
        move |_| {
            count += 1;
            let sent = [half, half / 2, archive.len()][count - 1];
            Reply::ok(&archive[..sent]).announce(archive.len())
        }
    });
    Bench::new().prepare(&tool(&server, GITHUB, &archive)).unwrap();
    assert_eq!(server.seen().len(), 3);
}

#[test]
fn an_archive_that_comes_byte_by_byte_is_waited_for() {
    let archive = runner();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/{GITHUB}", listener.local_addr().unwrap());
    let sending = std::thread::spawn({
        let archive = archive.clone();
        move || {
            let mut stream = listener.accept().unwrap().0;
            stream.set_nodelay(true).unwrap();
            // Without a length: its end is that of the connection.
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
            archive.chunks(1).for_each(|byte| stream.write_all(byte).unwrap());
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            // Closed earlier, what the client asked for would break the connection.
            drop(std::io::copy(&mut stream, &mut std::io::sink()));
        }
    });
    let tool = Tool { download_url: url, ..tool(&server_of(b""), GITHUB, &archive) };
    let bench = Bench::new();
    bench.prepare(&tool).unwrap();
    sending.join().unwrap();
    let events = bench.events.into_inner().unwrap();
    assert!(matches!(events[0], DownloadEvent::Started { bytes: None, .. }), "{events:?}");
}

#[test]
fn a_file_that_changes_while_it_is_downloaded_is_given_up() {
    let archive = runner();
    let server = Fake::serve({
        let archive = archive.clone();
        move |request| match request.header("range") {
            None => Reply::ok(&archive[..1000]).announce(archive.len()),
            Some(_) => Reply::ok(&[0; 5000]),
        }
    });
    let message = Bench::new().fail(&tool(&server, GITHUB, &archive));
    assert!(message.ends_with("it is another file now than at first"), "{message}");
    assert_eq!(server.seen().len(), 2);
}

#[test]
fn a_server_that_recovers_is_asked_again_and_one_that_refuses_is_not() {
    let archive = runner();
    let server = Fake::serve({
        let archive = archive.clone();
        let mut count = 0;
        move |_| {
            count += 1;
            if count < 3 { Reply::status(500, b"") } else { Reply::ok(&archive) }
        }
    });
    Bench::new().prepare(&tool(&server, GITHUB, &archive)).unwrap();
    assert_eq!(server.seen().len(), 3);

    for (status, tries) in [(401, 1), (404, 1), (502, 3)] {
        let server = Fake::serve(move |_| Reply::status(status, b"no"));
        let message = Bench::new().fail(&tool(&server, GITHUB, &archive));
        assert!(message.contains(&format!("/{GITHUB}: {status}: no")), "{message}");
        assert_eq!(server.seen().len(), tries, "{status}");
    }
}

#[test]
fn a_server_that_keeps_breaking_off_is_given_up() {
    let server = Fake::serve(|_| Reply::ok(&[0x1f, 0x8b]).announce(100));
    let tool = Tool { sha256: None, ..tool(&server, GITHUB, b"") };
    let message = Bench::new().fail(&tool);
    assert!(message.contains("the connection broke after 2 bytes"), "{message}");
    assert_eq!(server.seen().len(), 3);
}

#[test]
fn a_download_has_a_size_and_a_time_at_most() {
    let archive = runner();
    let server = server_of(&archive);
    let tool = tool(&server, GITHUB, &archive);
    let mut bench = Bench::new();
    bench.options.archive_bytes = 100;
    assert!(bench.fail(&tool).contains("the limit of 100 bytes"));
    let mut bench = Bench::new();
    bench.options.limits = Limits { bytes: 10_000, ..Limits::default() };
    assert!(bench.fail(&tool).contains("exceeds the limit of 10000 bytes"));
    let mut bench = Bench::new();
    bench.options.limits = Limits { entries: 2, ..Limits::default() };
    assert!(bench.fail(&tool).contains("exceeds the limit of 2 entries"));
    let mut bench = Bench::new();
    bench.options.timeout = Duration::ZERO;
    let seen = server.seen().len();
    let message = bench.fail(&tool);
    assert!(message.contains("timed out after 0 s with 0 bytes"), "{message}");
    assert_eq!(server.seen().len(), seen);
}

#[test]
fn a_token_stays_with_its_server() {
    let archive = runner();
    let other = server_of(&archive);
    let location = other.url("/real");
    let server = Fake::serve(move |_| Reply::redirect(302, &location));
    let tool = Tool { token: Some(Secret::new(SECRET)), ..tool(&server, GITHUB, &archive) };
    Bench::new().prepare(&tool).unwrap();
    let bearer = format!("Bearer {SECRET}");
    assert_eq!(server.seen()[0].header("authorization"), Some(&*bearer));
    assert_eq!(other.seen()[0].header("authorization"), None);
}

#[test]
fn nothing_in_an_archive_leads_out_of_its_directory() {
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
        let bench = Bench::new();
        let server = server_of(&archive);
        let tool = tool(&server, GITHUB, &archive);
        if entries[0].0 == "up" {
            // It leads as far up as the runner's directory.
            let layer = bench.prepare(&tool).unwrap();
            let runner = layer.path.join("home/runner/actions-runner");
            assert!(runner.join("escaped").exists());
        } else {
            let message = bench.fail(&tool);
            assert!(message.contains(entries[0].0), "{message}");
        }
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn gitea_s_runner_is_one_program_or_in_an_archive() {
    let program = b"\x7fELF and so on".to_vec();
    let packed = archive(&[
        ("README.md", 0o644, b'0', ""),
        ("gitea-runner-1.0-linux-amd64", 0o755, b'0', "\x7fELF and so on"),
    ]);
    for (name, content) in [(GITEA, program.clone()), ("gitea-runner-1.0.tar.gz", packed)] {
        let server = server_of(&content);
        let bench = Bench::new();
        let layer = bench.prepare(&tool(&server, name, &content)).unwrap();
        assert_eq!(layer.forge, Forge::Gitea);
        assert_eq!(layer.program, Path::new("/home/runner/act_runner/act_runner"));
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
fn a_call_that_is_stopped_while_it_downloads_is_overtaken() {
    let archive = runner();
    let (go, wait) = mpsc::channel();
    let (begun, reached) = mpsc::channel();
    let stopped = Fake::serve({
        let archive = archive.clone();
        move |_| {
            begun.send(()).unwrap();
            wait.recv().unwrap();
            Reply::ok(&archive)
        }
    });
    let server = server_of(&archive);
    let mut bench = Bench::new();
    bench.options.overtake_after = Duration::from_millis(20);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| bench.prepare(&tool(&stopped, GITHUB, &archive)).unwrap());
        reached.recv().unwrap();
        let second = bench.prepare(&tool(&server, GITHUB, &archive)).unwrap();
        let pruned = bench.runners().prune(&BTreeSet::new(), Duration::ZERO).unwrap();
        assert_eq!(pruned.count, 0, "the first has the lock");
        go.send(()).unwrap();
        assert_eq!(first.join().unwrap(), second);
        assert!(second.program.starts_with("/home/runner") && second.path.is_dir());
    });
    let kept = bench.runners().list().unwrap();
    assert_eq!(bench.left(), ["locks", kept[0].key.as_str()]);
}

#[test]
fn of_many_at_once_one_downloads() {
    let archive = runner();
    let server = server_of(&archive);
    let bench = Bench::new();
    let tool = tool(&server, GITHUB, &archive);
    let layers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| bench.prepare(&tool).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(layers.iter().all(|layer| *layer == layers[0]));
    assert_eq!(server.seen().len(), 1);
}
