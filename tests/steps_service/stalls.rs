//! Files, mounts and servers that do not answer hold neither Close nor the end of the server.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks::step_runner::wire::proto;
use oci_hooks::step_runner::wire::proto::step_result::Status;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::setup::{PROGRAM, Server, block_on, close, output, status};
use crate::support::program::{require_root, run, temporary_directory, wait_until};

/// Far less than what anything here would wait for by itself, which is a minute and more; far more than the
/// seconds that are meant, as machines may be busy.
const SOON: Duration = Duration::from_secs(25);

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// Something listens that accepts all and answers with nothing, or a byte at a time.
struct Stalling {
    port: u16,
    accepted: mpsc::Receiver<()>,
}

impl Stalling {
    fn start(trickles: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (send, accepted) = mpsc::channel();
        thread::spawn(move || {
            let mut open = Vec::new();
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                if trickles {
                    let mut stream = stream.try_clone().unwrap();
                    thread::spawn(move || trickle(&mut stream));
                }
                open.push(stream);
                if send.send(()).is_err() {
                    return;
                }
            }
        });
        Stalling { port, accepted }
    }
}

/// Sends a head that never ends, slowly but without a pause that a client would give up for.
fn trickle(stream: &mut TcpStream) {
    let head = b"HTTP/1.1 200 OK\r\n";
    for byte in head.iter().chain(b"X: ").chain(std::iter::repeat(&b'y')) {
        if stream.write_all(&[*byte]).is_err() {
            return;
        }
        thread::park_timeout(Duration::from_millis(500));
    }
}

fn step(server: &Server, id: &str, reference: &str) -> proto::RunRequest {
    server.request(id, &format!("  - {{name: a, step: {reference:?}}}\n"))
}

/// Closes a job, or ends its server, and returns how long that took.
async fn ends(mut server: Server, how: &str) -> Duration {
    let begin = Instant::now();
    if how == "close" {
        close(&mut server.gitlab(), "1").await;
        let took = begin.elapsed();
        assert!(status(&mut server.gitlab(), "1").await.is_err());
        return took;
    }
    server.signal(Signal::TERM);
    assert!(server.ended().success());
    begin.elapsed()
}

#[test]
fn a_step_file_that_is_no_file_is_an_error_at_once() {
    block_on(async {
        let server = Server::start();
        let mut client = server.gitlab();
        let dir = server.work_dir();
        for name in ["fifo", "socket", "device", "directory", "endless"] {
            fs::create_dir(dir.join(name)).unwrap();
        }
        fifo(&dir.join("fifo/step.yml"));
        let _listener =
            std::os::unix::net::UnixListener::bind(dir.join("socket/step.yml")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.join("device/step.yml")).unwrap();
        fs::create_dir(dir.join("directory/step.yml")).unwrap();
        std::os::unix::fs::symlink("/proc/kmsg", dir.join("endless/step.yml")).unwrap();
        for (name, what) in [
            ("fifo", "it is a FIFO, not a regular file"),
            ("socket", "it is a socket, not a regular file"),
            ("device", "it is a character device, not a regular file"),
            ("directory", "not a regular file"),
            ("endless", ""),
        ] {
            client.run(step(&server, name, &format!("./{name}"))).await.unwrap();
            output(&mut client, name).await;
            let ended = status(&mut client, name).await.unwrap();
            assert_eq!(ended.status(), Status::Failure);
            assert!(ended.message.ends_with(what), "{}", ended.message);
            assert!(ended.message.contains("loading file"), "{}", ended.message);
            close(&mut client, name).await;
        }
        let mut lint = std::process::Command::new(PROGRAM);
        let said = run(lint.arg("lint").arg(dir.join("fifo"))).failure();
        assert!(said.contains("step.yml is a FIFO, not a file"), "{said}");
    });
}

#[test]
fn what_a_job_leaves_in_place_of_our_files_holds_nobody() {
    block_on(async {
        let mut server = Server::start();
        let tmp = server.tmp().display().to_string();
        // As the job is the same user's, it finds them.
        let script = format!(
            "while [ ! -e {tmp}/../work/go ]; do sleep 0.02; done; cd {tmp}/*/state-*/ || exit 9; \
             for file in lock boot jobs/*/scratch/groups; do rm -f $file; mkfifo $file; done; \
             cd {tmp}/../work; echo $$ > half; mv half done; exec sleep 1000"
        );
        server.gitlab().run(server.script("1", &script)).await.unwrap();
        let done = server.work_dir().join("done");
        let cgroup = server.job_cgroup();
        fs::write(server.work_dir().join("go"), "").unwrap();
        wait_until("the job has replaced them", || done.exists());
        server.signal(Signal::KILL);
        server.ended();
        let lock = fs::read_dir(server.tmp()).unwrap().flatten().find_map(|dir| {
            let states = fs::read_dir(dir.path()).ok()?.flatten();
            states.map(|state| state.path().join("lock")).find(|lock| lock.exists())
        });
        // A lock that is none is an error, which says so.
        let said = run(&mut server.command()).failure();
        assert!(said.contains("cannot open the lock file"), "{said}");
        fs::remove_file(lock.unwrap()).unwrap();
        server.restart();
        // What a job runs that has removed the record of it is nobody's.
        let job: i32 = fs::read_to_string(done).unwrap().trim().parse().unwrap();
        kill_process(Pid::from_raw(job).unwrap(), Signal::KILL).unwrap();
        if let Some(cgroup) = cgroup {
            wait_until("the job's cgroup is empty", || fs::remove_dir(&cgroup).is_ok());
        }
    });
}

#[test]
fn a_server_of_images_or_repositories_that_stalls_holds_neither_close_nor_the_end() {
    block_on(async {
        for how in ["close", "signal"] {
            for trickles in [false, true] {
                for kind in ["git", "image"] {
                    let stalling = Stalling::start(trickles);
                    let cache = temporary_directory();
                    let server =
                        Server::with(&[], &[("XDG_CACHE_HOME", cache.path().to_str().unwrap())]);
                    let at = format!("127.0.0.1:{}", stalling.port);
                    let request = if kind == "git" {
                        let git = format!(
                            "  - name: a\n    step: {{git: {{url: 'http://{at}/r.git', rev: v1}}}}\n"
                        );
                        server.request("1", &git)
                    } else {
                        step(&server, "1", &format!("{at}/steps/x:1"))
                    };
                    server.gitlab().run(request).await.unwrap();
                    let accepted = stalling.accepted.recv_timeout(SOON * 4);
                    accepted.unwrap_or_else(|_| panic!("{kind} does not connect"));
                    let took = ends(server, how).await;
                    assert!(took < SOON, "{how} {kind} {trickles}: {took:?}");
                }
            }
        }
    });
}

/// A mount whose file system never answers: nobody reads what the kernel asks. Dropped, all who wait for it
/// get an error.
struct DeadMount {
    at: PathBuf,
    _dir: tempfile::TempDir,
    _device: std::os::fd::OwnedFd,
}

impl DeadMount {
    fn new() -> Self {
        use std::os::fd::AsRawFd as _;
        let dir = temporary_directory();
        let at = dir.path().join("dead");
        fs::create_dir(&at).unwrap();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = open("/dev/fuse", flags, Mode::empty()).expect("this test needs /dev/fuse");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        mount("dead", &at, "fuse", MountFlags::empty(), Some(options.as_c_str())).unwrap();
        DeadMount { at, _dir: dir, _device: device }
    }
}

impl Drop for DeadMount {
    fn drop(&mut self) {
        let _ = unmount(&self.at, UnmountFlags::DETACH);
    }
}

#[test]
fn a_mount_that_does_not_answer_holds_neither_close_nor_the_end() {
    require_root();
    block_on(async {
        for how in ["close", "signal"] {
            for kind in ["file", "directory", "program", "work"] {
                let server = Server::start();
                let dead = DeadMount::new();
                let at = dead.at.display();
                let request = match kind {
                    "file" => step(&server, "1", &format!("{at}/step")),
                    "directory" => step(&server, "1", "./step"),
                    _ => step(&server, "1", "./program"),
                };
                let make = |name: &str, exec: &str| {
                    fs::create_dir(server.work_dir().join(name)).unwrap();
                    let text = format!("{{}}\n---\nexec: {exec}\n");
                    fs::write(server.work_dir().join(name).join("step.yml"), text).unwrap();
                };
                make("step", &format!("{{command: ['true'], work_dir: '{at}'}}"));
                make("program", &format!("{{command: ['{at}/program']}}"));
                let mut client = server.gitlab();
                if kind == "work" {
                    // Its start hangs, not the job.
                    let request = proto::RunRequest {
                        work_dir: format!("{at}/work"),
                        ..server.script("1", "true")
                    };
                    let starting = tokio::spawn(async move { client.run(request).await });
                    wait_until("a thread hangs", || hangs(&server));
                    let took = ends(server, how).await;
                    assert!(took < SOON, "{how} {kind}: {took:?}");
                    drop(dead);
                    assert!(starting.await.unwrap().is_err() || how == "close");
                    continue;
                }
                client.run(request).await.unwrap();
                wait_until("a thread hangs", || hangs(&server));
                let took = ends(server, how).await;
                assert!(took < SOON, "{how} {kind}: {took:?}");
            }
        }
    });
}

/// Returns whether a thread of the server sleeps that does what may hang.
fn hangs(server: &Server) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().flatten();
    threads.map(|thread| thread.path()).any(|thread| {
        let read = |name: &str| fs::read_to_string(thread.join(name)).unwrap_or_default();
        let is_such = ["phase", "work-dir"].contains(&read("comm").trim());
        is_such && read("stat").rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('R'))
    })
}
