//! `oci-hooks monitor`, run as a service manager or a user would.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{LONG, Tree, hook, hook_with};

/// A monitor that runs. It is killed with the value.
struct Program {
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Program {
    fn start(tree: &Tree, args: &[&str]) -> Self {
        Self::start_with(tree, args, |_| {})
    }

    fn start_with(tree: &Tree, args: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oci-hooks"));
        command.args(["monitor", "--coalesce", "10", "--hooks-dir"]).arg(tree.path("hooks.d"));
        command.args(args).env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = lines(child.stderr.take().unwrap());
        Program { child, stdout, stderr }
    }

    /// Returns the next event.
    #[track_caller]
    fn event(&self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    /// Returns the kind of the next event, and the file it is about.
    #[track_caller]
    fn what(&self) -> String {
        let event = self.event();
        let name = event["name"].as_str().unwrap_or_default();
        format!("{} {name}", event["event"].as_str().unwrap())
    }

    #[track_caller]
    fn line(&self) -> String {
        self.stdout.recv_timeout(LONG).expect("a line in time")
    }

    #[track_caller]
    fn error_line(&self) -> String {
        self.stderr.recv_timeout(LONG).expect("a line in time")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end.
    fn end(mut self) -> ExitStatus {
        // Both close when it ends.
        for stream in [&self.stdout, &self.stderr] {
            while stream.recv_timeout(LONG).is_ok() {}
        }
        self.child.wait().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads lines in a thread, so that they can be waited for with a deadline.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

fn tree() -> Tree {
    let tree = Tree::new();
    tree.mkdir("hooks.d");
    tree.write("hooks.d/a.json", hook());
    tree
}

/// Takes the time out of an event, after a look at it.
fn without_time(mut event: Value) -> Value {
    let time = event.as_object_mut().unwrap().remove("time").unwrap();
    let time: jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
    assert!(time.duration_until(jiff::Timestamp::now()).abs() < LONG.try_into().unwrap());
    event
}

#[test]
fn events_have_their_documented_fields() {
    let tree = tree();
    tree.mkdir("high");
    tree.put("hooks.d/b.json", "{\n  \"version\": 1\n}");
    let (low, high) = (tree.path("hooks.d"), tree.path("high"));
    let missing = tree.path("missing");
    let program = Program::start(
        &tree,
        &["--hooks-dir", high.to_str().unwrap(), "--hooks-dir", missing.to_str().unwrap()],
    );
    let definition = json!({
        "version": "1.0.0",
        "hook": {"path": "/bin/true"},
        "when": {"combine": "all", "always": true},
        "stages": ["poststop"],
    });
    let with = |fields: Value| {
        let mut event = definition.clone();
        event.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        event
    };
    let problem = json!({
        "class": "json-type", "path": low.join("b.json"), "line": 2, "column": 14,
        "pointer": "/version", "message": "expected a string, found number", "hint": null,
    });
    assert_eq!(
        without_time(program.event()),
        json!({
            "event": "snapshot",
            "dirs": [
                {"path": low, "exists": true}, {"path": high, "exists": true},
                {"path": missing, "exists": false}
            ],
            "hooks": [with(json!({"name": "a.json", "path": low.join("a.json")}))],
            "problems": [problem],
        })
    );

    tree.put("high/a.json", hook());
    assert_eq!(
        without_time(program.event()),
        with(json!({"event": "added", "name": "a.json", "path": high.join("a.json")}))
    );
    assert_eq!(
        without_time(program.event()),
        json!({"event": "masked", "name": "a.json", "path": low.join("a.json"), "by": high.join("a.json")})
    );

    tree.put("high/a.json", "{");
    let mut broken = without_time(program.event());
    assert_eq!(broken["problem"]["class"], "json-syntax");
    assert_eq!(broken["problem"]["path"], json!(high.join("a.json")));
    broken.as_object_mut().unwrap().remove("problem");
    assert_eq!(
        broken,
        json!({"event": "broken", "name": "a.json", "path": high.join("a.json"), "in_force": true})
    );

    tree.remove("high/a.json");
    assert_eq!(
        without_time(program.event()),
        json!({"event": "removed", "name": "a.json", "path": high.join("a.json")})
    );
    assert_eq!(
        without_time(program.event()),
        with(json!({"event": "restored", "name": "a.json", "path": low.join("a.json")}))
    );
}

#[test]
fn people_get_lines_without_json() {
    let tree = tree();
    let program = Program::start(&tree, &["--format", "human"]);
    let path = |name| tree.path("hooks.d").join(name).display().to_string();
    let dir = tree.path("hooks.d").display().to_string();
    assert!(program.line().ends_with(&format!("Z watching {dir}")));
    assert!(program.line().ends_with(&format!("Z in force {}", path("a.json"))));
    tree.put("hooks.d/a.json", "");
    let line = program.line();
    assert!(line.contains(&format!("Z broken   {}:1:1: unexpected end", path("a.json"))), "{line}");
    assert!(line.ends_with("; what it said before stays in force"), "{line}");
    tree.remove("hooks.d/a.json");
    assert!(program.line().ends_with(&format!("Z removed  {}", path("a.json"))));
}

#[test]
fn term_and_int_end_it_cleanly() {
    let tree = tree();
    for signal in [Signal::TERM, Signal::INT] {
        let program = Program::start(&tree, &[]);
        assert_eq!(program.what(), "snapshot ");
        program.signal(signal);
        assert_eq!(program.end().code(), Some(0), "{signal:?}");
    }
}

#[test]
fn hup_reads_everything_again() {
    let tree = tree();
    let program = Program::start(&tree, &[]);
    assert_eq!(program.what(), "snapshot ");
    program.signal(Signal::HUP);
    assert_eq!(program.what(), "snapshot ");
    tree.put("hooks.d/b.json", hook());
    assert_eq!(program.what(), "added b.json");
    program.signal(Signal::TERM);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn reader_that_goes_away_ends_it_quietly() {
    let tree = tree();
    let mut program = Program::start_with(&tree, &[], |command| {
        // `read` takes bytes one by one, and so the pipe is empty when it ends.
        let monitor = "\"$0\" \"$@\"; echo $? >&2";
        let script = format!("{{ {monitor}; }} | {{ read -r line; echo \"$line\"; }}");
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(script).arg(command.get_program()).args(command.get_args());
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        *command = shell;
    });
    assert_eq!(program.what(), "snapshot ");
    // Nothing is written that could fail, and still it notices.
    assert_eq!(program.error_line(), "0");
    assert!(program.stderr.recv_timeout(LONG).is_err(), "it said more");
    assert!(program.child.wait().unwrap().success());
}

#[test]
fn command_gets_the_events_and_runs_once_a_batch() {
    let tree = tree();
    let out = tree.path("out");
    let exec = r#"{ echo "$OCI_HOOKS_CHANGES: $OCI_HOOKS_EVENTS"; cat; } >>"$OUT"; echo done >&2"#;
    let program = Program::start_with(&tree, &["--exec", exec], |command| {
        command.env("OUT", &out);
    });
    assert_eq!(program.what(), "snapshot ");
    tree.rename("hooks.d/a.json", "hooks.d/b.json");
    let events = format!("{}\n{}", program.line(), program.line());
    assert_eq!(program.error_line(), "done");
    assert_eq!(fs::read_to_string(&out).unwrap(), format!("2: added removed\n{events}\n"));
}

#[test]
fn commands_never_overlap_and_miss_nothing() {
    let tree = tree();
    // Runs until it is allowed to end, and says who is there.
    let exec = r#"mkdir "$ROOT/running" || echo overlap >&2
        echo "$OCI_HOOKS_CHANGES" >&2; read -r go <"$ROOT/go"; rmdir "$ROOT/running""#;
    let fifo = tree.path("go");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let program = Program::start_with(&tree, &["--exec", exec], |command| {
        command.env("ROOT", tree.path(""));
    });
    assert_eq!(program.what(), "snapshot ");
    tree.put("hooks.d/b.json", hook());
    assert_eq!(program.what(), "added b.json");
    // Both batches come while the first command runs, and wait for it as one.
    for name in ["c.json", "d.json"] {
        tree.put(&format!("hooks.d/{name}"), hook());
        assert_eq!(program.what(), format!("added {name}"));
    }
    fs::write(&fifo, "go\n").unwrap();
    assert_eq!(program.error_line(), "1");
    fs::write(&fifo, "go\n").unwrap();
    assert_eq!(program.error_line(), "2");
    program.signal(Signal::TERM);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn command_that_fails_is_told_and_nothing_ends() {
    let tree = tree();
    let program = Program::start(&tree, &["--exec", "echo oops >&2; exit 3"]);
    assert_eq!(program.what(), "snapshot ");
    for name in ["b.json", "c.json"] {
        tree.put(&format!("hooks.d/{name}"), hook());
        assert_eq!(program.what(), format!("added {name}"));
        assert_eq!(program.error_line(), "oops");
        let warning = "warning: command exited with status 3: echo oops >&2; exit 3";
        assert_eq!(program.error_line(), warning);
    }
}

#[test]
fn command_that_takes_too_long_is_killed() {
    let tree = tree();
    let program = Program::start(&tree, &["--exec", "exec sleep 1000", "--exec-timeout", "1"]);
    assert_eq!(program.what(), "snapshot ");
    tree.put("hooks.d/b.json", hook());
    let warning = "warning: command was killed after 1 s: exec sleep 1000";
    assert_eq!(program.error_line(), warning);
}

#[test]
fn running_command_is_waited_for_at_the_end_unless_asked_twice() {
    let tree = tree();
    let fifo = tree.path("go");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let exec = r#"echo started >"$STARTED"; read -r go <"$GO"; echo ended >&2"#;
    for asked in [1, 2] {
        let started = tree.path("started");
        assert!(Command::new("mkfifo").arg(&started).status().unwrap().success());
        let (socket, address) = notify_socket(&tree, &format!("wait-{asked}"));
        let program = Program::start_with(&tree, &["--exec", exec], |command| {
            command.env("GO", &fifo).env("STARTED", &started).env("NOTIFY_SOCKET", &address);
        });
        assert_eq!(program.what(), "snapshot ");
        tree.put(&format!("hooks.d/new-{asked}.json"), hook());
        assert_eq!(fs::read_to_string(&started).unwrap(), "started\n");
        program.signal(Signal::TERM);
        while !receive(&socket).starts_with("STOPPING=1") {}
        if asked == 2 {
            program.signal(Signal::TERM);
            assert_eq!(program.end().code(), None);
            // The command lives on, and is let go.
            fs::write(&fifo, "go\n").unwrap();
        } else {
            fs::write(&fifo, "go\n").unwrap();
            assert_eq!(program.error_line(), "ended");
            assert_eq!(program.end().code(), Some(0));
        }
        fs::remove_file(started).unwrap();
    }
}

/// Returns a socket in the abstract namespace, and its address as systemd writes it.
fn notify_socket(tree: &Tree, name: &str) -> (UnixDatagram, String) {
    // No other tree on this machine has that path.
    let name = tree.path(name).display().to_string();
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    (socket, format!("@{name}"))
}

fn receive(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    let count = socket.recv(&mut buffer).unwrap();
    String::from_utf8(buffer[..count].to_vec()).unwrap()
}

#[test]
fn service_manager_is_told_of_start_changes_reload_and_end() {
    let tree = tree();
    let path = tree.path("notify");
    let by_path = UnixDatagram::bind(&path).unwrap();
    by_path.set_read_timeout(Some(LONG)).unwrap();
    let by_name = notify_socket(&tree, "service");
    for (socket, address) in [(by_path, path.to_str().unwrap().to_owned()), by_name] {
        tree.put("hooks.d/a.json", hook());
        let exec = "echo \"[$NOTIFY_SOCKET]\" >&2";
        let program = Program::start_with(&tree, &["--exec", exec], |command| {
            command.env("NOTIFY_SOCKET", &address);
        });
        assert_eq!(receive(&socket), "READY=1\nSTATUS=Hooks: 1, problems: 0");
        // It is ready when the snapshot is there, and not before.
        assert_eq!(program.what(), "snapshot ");
        tree.put("hooks.d/a.json", "{");
        assert_eq!(receive(&socket), "STATUS=Hooks: 1, problems: 1");
        assert_eq!(program.error_line(), "[]", "the command could talk to the manager");
        program.signal(Signal::HUP);
        let reloading = receive(&socket);
        let micros = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(micros.parse::<u64>().unwrap() > 0);
        assert_eq!(receive(&socket), "READY=1\nSTATUS=Hooks: 1, problems: 1");
        program.signal(Signal::TERM);
        assert_eq!(receive(&socket), "STOPPING=1\nSTATUS=Stopping");
        assert_eq!(program.end().code(), Some(0));
    }
}

#[test]
fn directory_that_comes_later_is_followed() {
    let tree = Tree::new();
    let program = Program::start(&tree, &[]);
    assert_eq!(program.event()["dirs"][0]["exists"], false);
    tree.mkdir("hooks.d");
    tree.put("hooks.d/a.json", hook());
    assert_eq!(program.what(), "added a.json");
    tree.put("hooks.d/a.json", hook_with("/bin/sh"));
    assert_eq!(program.what(), "changed a.json");
}
