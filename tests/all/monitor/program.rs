//! `oci-hooks monitor`, run as a service manager or a user would.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Command, Stdio};

use oci_hooks::hooks::consumer::Consumer;
use rustix::process::{Signal, getuid};
use serde_json::{Value, json};

use crate::monitor::process::{MonitorProcess, remove_time};
use crate::monitor::support::{HookTree, LONG, hook, hook_with};

fn tree() -> HookTree {
    let tree = HookTree::new();
    tree.mkdir("hooks.d");
    tree.write("hooks.d/a.json", hook());
    tree
}

#[test]
fn events_have_their_documented_fields() {
    let tree = tree();
    tree.mkdir("high");
    tree.put_file("hooks.d/b.json", "{\n  \"version\": 1\n}");
    let (low, high) = (tree.path("hooks.d"), tree.path("high"));
    let missing = tree.path("missing");
    let program = MonitorProcess::start(
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
        remove_time(program.event()),
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

    tree.put_file("high/a.json", hook());
    assert_eq!(
        remove_time(program.event()),
        with(json!({"event": "added", "name": "a.json", "path": high.join("a.json")}))
    );
    assert_eq!(
        remove_time(program.event()),
        json!({"event": "masked", "name": "a.json", "path": low.join("a.json"), "by": high.join("a.json")})
    );

    tree.put_file("high/a.json", "{");
    let mut broken = remove_time(program.event());
    assert_eq!(broken["problem"]["class"], "json-syntax");
    assert_eq!(broken["problem"]["path"], json!(high.join("a.json")));
    broken.as_object_mut().unwrap().remove("problem");
    assert_eq!(
        broken,
        json!({"event": "broken", "name": "a.json", "path": high.join("a.json"), "in_force": false})
    );
    assert_eq!(
        remove_time(program.event()),
        with(json!({"event": "restored", "name": "a.json", "path": low.join("a.json")}))
    );

    tree.remove("high/a.json");
    assert_eq!(
        remove_time(program.event()),
        json!({"event": "removed", "name": "a.json", "path": high.join("a.json")})
    );

    let user = getuid().as_raw();
    for mode in [0o666, 0o600] {
        fs::set_permissions(low.join("a.json"), fs::Permissions::from_mode(mode)).unwrap();
        let mut altered = remove_time(program.event());
        let problem = altered.as_object_mut().unwrap().remove("problem");
        assert_eq!(problem.is_some(), mode == 0o666, "{problem:?}");
        if let Some(problem) = problem {
            assert_eq!(
                (&problem["class"], &problem["path"]),
                (&json!("untrusted"), &json!(low.join("a.json")))
            );
        }
        assert_eq!(
            altered,
            json!({
                "event": "altered", "name": "a.json", "path": low.join("a.json"),
                "uid": user, "mode": format!("{mode:04o}"),
            })
        );
    }
}

#[test]
fn human_format_has_no_json() {
    let tree = tree();
    let program = MonitorProcess::start(&tree, &["--format", "human", "--as", "nri"]);
    let path = |name| tree.path("hooks.d").join(name).display().to_string();
    let dir = tree.path("hooks.d").display().to_string();
    assert!(program.line().ends_with(&format!("Z watching {dir}")));
    assert!(program.line().ends_with(&format!("Z in force {}", path("a.json"))));
    let mode = fs::Permissions::from_mode(0o640);
    fs::set_permissions(tree.path("hooks.d/a.json"), mode).unwrap();
    let line = program.line();
    assert!(line.contains(&format!("Z altered  {} (mode 0640, user ", path("a.json"))), "{line}");
    tree.write("hooks.d/a.json", "");
    let line = program.line();
    assert!(line.contains(&format!("Z broken   {}:1:1: unexpected end", path("a.json"))), "{line}");
    assert!(line.ends_with("; its previous content stays in force"), "{line}");
    tree.remove("hooks.d/a.json");
    assert!(program.line().ends_with(&format!("Z removed  {}", path("a.json"))));
}

#[test]
fn a_file_that_breaks_stays_in_force_only_for_nri() {
    for consumer in Consumer::ALL.map(|consumer| consumer.name) {
        let in_force = consumer == "nri";
        let tree = tree();
        let program = MonitorProcess::start(&tree, &["--as", consumer]);
        assert_eq!(program.next_event(), "snapshot ");
        tree.put_file("hooks.d/a.json", "{");
        let event = program.event();
        assert_eq!(
            (&event["event"], &event["in_force"]),
            (&json!("broken"), &json!(in_force)),
            "{consumer}"
        );
        program.signal(Signal::HUP);
        let hooks = program.event()["hooks"].as_array().unwrap().len();
        assert_eq!(hooks, usize::from(in_force), "{consumer}");
    }
}

#[test]
fn sigterm_and_sigint_stop_the_monitor_cleanly() {
    let tree = tree();
    for signal in [Signal::TERM, Signal::INT] {
        let program = MonitorProcess::start(&tree, &[]);
        assert_eq!(program.next_event(), "snapshot ");
        program.signal(signal);
        assert_eq!(program.end().code(), Some(0), "{signal:?}");
    }
}

#[test]
fn sighup_rereads_everything() {
    let tree = tree();
    let program = MonitorProcess::start(&tree, &[]);
    assert_eq!(program.next_event(), "snapshot ");
    program.signal(Signal::HUP);
    assert_eq!(program.next_event(), "snapshot ");
    tree.put_file("hooks.d/b.json", hook());
    assert_eq!(program.next_event(), "added b.json");
    program.signal(Signal::TERM);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn closed_reader_ends_the_monitor_quietly() {
    let tree = tree();
    let mut program = MonitorProcess::start_with(&tree, &[], |command| {
        // `read` reads byte by byte, so the pipe is empty when it exits.
        let monitor = "\"$0\" \"$@\"; echo $? >&2";
        let script = format!("{{ {monitor}; }} | {{ read -r line; echo \"$line\"; }}");
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(script).arg(command.get_program()).args(command.get_args());
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        *command = shell;
    });
    assert_eq!(program.next_event(), "snapshot ");
    // The monitor notices the closed pipe without a failing write.
    assert_eq!(program.error_line(), "0");
    assert!(program.stderr.recv_timeout(LONG).is_err(), "it said more");
    assert!(program.child.wait().unwrap().success());
}

#[test]
fn command_gets_events_and_runs_once_per_batch() {
    let tree = tree();
    let out = tree.path("out");
    let exec = r#"{ echo "$OCI_HOOKS_CHANGES: $OCI_HOOKS_EVENTS"; cat; } >>"$OUT"; echo done >&2"#;
    let program = MonitorProcess::start_with(&tree, &["--exec", exec], |command| {
        command.env("OUT", &out);
    });
    assert_eq!(program.next_event(), "snapshot ");
    tree.rename("hooks.d/a.json", "hooks.d/b.json");
    let events = format!("{}\n{}", program.line(), program.line());
    assert_eq!(program.error_line(), "done");
    assert_eq!(fs::read_to_string(&out).unwrap(), format!("2: added removed\n{events}\n"));
}

#[test]
fn commands_never_overlap_and_miss_no_event() {
    let tree = tree();
    // Runs until told to exit, and reports overlapping runs.
    let exec = r#"mkdir "$ROOT/running" || echo overlap >&2
        echo "$OCI_HOOKS_CHANGES" >&2; read -r go <"$ROOT/go"; rmdir "$ROOT/running""#;
    let fifo = tree.path("go");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let program = MonitorProcess::start_with(&tree, &["--exec", exec], |command| {
        command.env("ROOT", tree.path(""));
    });
    assert_eq!(program.next_event(), "snapshot ");
    tree.put_file("hooks.d/b.json", hook());
    assert_eq!(program.next_event(), "added b.json");
    // Both batches arrive while the first command runs, and are merged.
    for name in ["c.json", "d.json"] {
        tree.put_file(&format!("hooks.d/{name}"), hook());
        assert_eq!(program.next_event(), format!("added {name}"));
    }
    fs::write(&fifo, "go\n").unwrap();
    // The output of a command is printed once it has ended.
    assert_eq!(program.error_line(), "1");
    fs::write(&fifo, "go\n").unwrap();
    assert_eq!(program.error_line(), "2");
    program.signal(Signal::TERM);
    assert_eq!(program.end().code(), Some(0));
}

#[test]
fn failing_command_is_reported_and_the_monitor_continues() {
    let tree = tree();
    let program = MonitorProcess::start(&tree, &["--exec", "echo oops >&2; exit 3"]);
    assert_eq!(program.next_event(), "snapshot ");
    for name in ["b.json", "c.json"] {
        tree.put_file(&format!("hooks.d/{name}"), hook());
        assert_eq!(program.next_event(), format!("added {name}"));
        assert_eq!(program.error_line(), "oops");
        let warning = "warning: command exited with status 3: echo oops >&2; exit 3";
        assert_eq!(program.error_line(), warning);
    }
}

#[test]
fn command_exceeding_its_timeout_is_killed() {
    let tree = tree();
    let program =
        MonitorProcess::start(&tree, &["--exec", "exec sleep 1000", "--exec-timeout", "1"]);
    assert_eq!(program.next_event(), "snapshot ");
    tree.put_file("hooks.d/b.json", hook());
    let warning = "warning: command was killed after 1 s: exec sleep 1000";
    assert_eq!(program.error_line(), warning);
}

#[test]
fn running_command_is_waited_for_unless_sigint_follows() {
    let tree = tree();
    let fifo = tree.path("go");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let exec = r#"echo started >"$STARTED"; read -r go <"$GO"; echo ended >&2"#;
    // timeout(1) sends SIGTERM twice.
    for (round, second) in [Signal::TERM, Signal::INT].into_iter().enumerate() {
        let started = tree.path("started");
        assert!(Command::new("mkfifo").arg(&started).status().unwrap().success());
        let (socket, address) = notify_socket(&tree, &format!("wait-{round}"));
        let program = MonitorProcess::start_with(&tree, &["--exec", exec], |command| {
            command.env("GO", &fifo).env("STARTED", &started).env("NOTIFY_SOCKET", &address);
        });
        assert_eq!(program.next_event(), "snapshot ");
        tree.put_file(&format!("hooks.d/new-{round}.json"), hook());
        assert_eq!(fs::read_to_string(&started).unwrap(), "started\n");
        program.signal(Signal::TERM);
        while !receive(&socket).starts_with("STOPPING=1") {}
        program.signal(second);
        if second == Signal::INT {
            assert_eq!(program.end().code(), None);
            // Ends the command, which outlives the monitor.
            fs::write(&fifo, "go\n").unwrap();
        } else {
            fs::write(&fifo, "go\n").unwrap();
            assert_eq!(program.error_line(), "ended");
            assert_eq!(program.end().code(), Some(0));
        }
        fs::remove_file(started).unwrap();
    }
}

/// Returns a socket in the abstract namespace, and its address in systemd's notation.
fn notify_socket(tree: &HookTree, name: &str) -> (UnixDatagram, String) {
    // The path is unique on this machine.
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
fn service_manager_is_notified_of_start_changes_reload_and_stop() {
    let tree = tree();
    let path = tree.path("notify");
    let by_path = UnixDatagram::bind(&path).unwrap();
    by_path.set_read_timeout(Some(LONG)).unwrap();
    let by_name = notify_socket(&tree, "service");
    for (socket, address) in [(by_path, path.to_str().unwrap().to_owned()), by_name] {
        tree.put_file("hooks.d/a.json", hook());
        let exec = "echo \"[$NOTIFY_SOCKET]\" >&2";
        let program = MonitorProcess::start_with(&tree, &["--exec", exec], |command| {
            command.env("NOTIFY_SOCKET", &address);
        });
        assert_eq!(receive(&socket), "READY=1\nSTATUS=Hooks: 1, problems: 0");
        // Readiness is reported after the snapshot.
        assert_eq!(program.next_event(), "snapshot ");
        tree.put_file("hooks.d/a.json", "{");
        assert_eq!(receive(&socket), "STATUS=Hooks: 0, problems: 1");
        assert_eq!(program.error_line(), "[]", "the command could talk to the manager");
        program.signal(Signal::HUP);
        let reloading = receive(&socket);
        let micros = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(micros.parse::<u64>().unwrap() > 0);
        assert_eq!(receive(&socket), "READY=1\nSTATUS=Hooks: 0, problems: 1");
        program.signal(Signal::TERM);
        assert_eq!(receive(&socket), "STOPPING=1\nSTATUS=Stopping");
        assert_eq!(program.end().code(), Some(0));
    }
}

#[test]
fn directory_created_later_is_followed() {
    let tree = HookTree::new();
    let program = MonitorProcess::start(&tree, &[]);
    assert_eq!(program.event()["dirs"][0]["exists"], false);
    tree.mkdir("hooks.d");
    tree.put_file("hooks.d/a.json", hook());
    assert_eq!(program.next_event(), "added a.json");
    tree.put_file("hooks.d/a.json", hook_with("/bin/sh"));
    assert_eq!(program.next_event(), "changed a.json");
}
