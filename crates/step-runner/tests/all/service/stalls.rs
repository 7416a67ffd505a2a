//! Files, mounts and servers that hang do not block Close or the server's shutdown.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks_host::processes::ProcessSnapshot;
use oci_hooks_testsupport::program::{require_root, run, temporary_directory, wait_until};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use step_runner::wire::proto;
use step_runner::wire::proto::step_result::Status;

use crate::service::launcher::launcher;
use crate::service::setup::{PROGRAM, ServerFixture, block_on, close, output, status};

/// Time limit far below the timeouts, which are a minute and more, and far above the expected seconds, because
/// machines may be busy.
const SOON: Duration = Duration::from_secs(25);

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// A listener that accepts all connections, and answers nothing or a byte at a time.
struct StallingListener {
    port: u16,
    accepted: mpsc::Receiver<()>,
}

impl StallingListener {
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
        StallingListener { port, accepted }
    }
}

/// Sends an endless response head, with pauses too short for a client's timeout.
fn trickle(stream: &mut TcpStream) {
    let head = b"HTTP/1.1 200 OK\r\n";
    for byte in head.iter().chain(b"X: ").chain(std::iter::repeat(&b'y')) {
        if stream.write_all(&[*byte]).is_err() {
            return;
        }
        thread::park_timeout(Duration::from_millis(500));
    }
}

fn step(server: &ServerFixture, id: &str, reference: &str) -> proto::RunRequest {
    server.request(id, &format!("  - {{name: a, step: {reference:?}}}\n"))
}

/// Closes a job or shuts down its server, and returns the duration.
async fn measure_end(mut server: ServerFixture, how: &str) -> Duration {
    let begin = Instant::now();
    if how == "close" {
        close(&mut server.gitlab(), "1").await;
        let took = begin.elapsed();
        assert!(status(&mut server.gitlab(), "1").await.is_err());
        return took;
    }
    server.signal(Signal::TERM);
    assert!(server.wait_for_exit().success());
    begin.elapsed()
}

#[test]
fn special_file_as_step_file_is_an_error_at_once() {
    block_on(async {
        let server = ServerFixture::start();
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
fn fifos_in_place_of_server_files_do_not_block() {
    block_on(async {
        let mut server = ServerFixture::start();
        let tmp = server.tmp().display().to_string();
        // The job can find the files because it runs as the same user.
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
        server.wait_for_exit();
        let lock = fs::read_dir(server.tmp()).unwrap().flatten().find_map(|dir| {
            let states = fs::read_dir(dir.path()).ok()?.flatten();
            states.map(|state| state.path().join("lock")).find(|lock| lock.exists())
        });
        // A lock that is no regular file is reported as an error.
        let said = run(&mut server.command()).failure();
        assert!(said.contains("cannot open the lock file"), "{said}");
        fs::remove_file(lock.unwrap()).unwrap();
        server.restart();
        // The process of a job whose record was removed is not killed.
        let job: i32 = fs::read_to_string(done).unwrap().trim().parse().unwrap();
        kill_process(Pid::from_raw(job).unwrap(), Signal::KILL).unwrap();
        if let Some(cgroup) = cgroup {
            wait_until("the job's cgroup is empty", || fs::remove_dir(&cgroup).is_ok());
        }
    });
}

#[test]
fn stalling_remote_server_blocks_neither_close_nor_shutdown() {
    block_on(async {
        for how in ["close", "signal"] {
            for trickles in [false, true] {
                for kind in ["git", "image"] {
                    let stalling = StallingListener::start(trickles);
                    let cache = temporary_directory();
                    let server = ServerFixture::with(
                        &[],
                        &[("XDG_CACHE_HOME", cache.path().to_str().unwrap())],
                    );
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
                    let took = measure_end(server, how).await;
                    assert!(took < SOON, "{how} {kind} {trickles}: {took:?}");
                }
            }
        }
    });
}

/// A mount of a FUSE file system whose requests are never answered. Unmounting it on drop fails all waiting calls.
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
fn stalling_mount_blocks_neither_close_nor_shutdown() {
    require_root();
    block_on(async {
        for how in ["close", "signal"] {
            for kind in ["file", "directory", "program", "work"] {
                let server = ServerFixture::start();
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
                    // Here the start hangs, not the job.
                    let request = proto::RunRequest {
                        work_dir: format!("{at}/work"),
                        ..server.script("1", "true")
                    };
                    let starting = tokio::spawn(async move { client.run(request).await });
                    wait_until("a thread hangs", || is_blocked(&server));
                    let took = measure_end(server, how).await;
                    assert!(took < SOON, "{how} {kind}: {took:?}");
                    drop(dead);
                    assert!(starting.await.unwrap().is_err() || how == "close");
                    continue;
                }
                client.run(request).await.unwrap();
                wait_until("a thread hangs", || is_blocked(&server));
                let took = measure_end(server, how).await;
                assert!(took < SOON, "{how} {kind}: {took:?}");
            }
        }
    });
}

/// Returns whether a thread of the server that runs blocking calls hangs, or a process before it executes its program.
fn is_blocked(server: &ServerFixture) -> bool {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let sleeps = |dir: &Path| {
        read(dir.join("stat"))
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with(['S', 'D']))
    };
    let threads = fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().flatten();
    let is_stuck = threads.map(|thread| thread.path()).any(|thread| {
        let is_such = ["work", "work-dir"].contains(&read(thread.join("comm")).trim());
        is_such && sleeps(&thread)
    });
    is_stuck
        || launcher(server).is_some_and(|launcher| {
            ProcessSnapshot::children_of(launcher).into_iter().any(|child| {
                let dir = PathBuf::from(format!("/proc/{child}"));
                read(dir.join("cmdline")).starts_with("launcher\0") && sleeps(&dir)
            })
        })
}
