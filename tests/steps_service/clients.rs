//! Clients on gRPC's C library, as they are: Python's and Ruby's.
//!
//! They name a socket by its path in `:authority`, which h2 alone refuses. Debian 12's (1.51) do not yet, so
//! that they are also told to; `tests/support/grpcio.sh` installs a Python library that does.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::setup::Server;
use crate::support::program::run;

/// What is the same in the output of both.
fn expected(cancelled: &str, unknown: &str) -> String {
    format!(
        "healthy true\nlog true\nstatus step \"a\": exec: exit status 3\njobs 0\n\
         cancelled {cancelled}\nerror {unknown} no job with id \"2\"\n"
    )
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Returns a path as the C library has it in `:authority`.
fn authority(socket: &Path) -> String {
    let path = socket.as_os_str().as_bytes();
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let encode = |byte: &u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(*byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    path.iter().map(encode).collect()
}

/// Runs a client, and returns the version of its library and what else it said.
#[track_caller]
fn play(
    program: &Path,
    script: &str,
    authority: impl Fn(&Path) -> Option<String>,
) -> (String, String) {
    let server = Server::start();
    let mut client = Command::new(program);
    client.arg(file("tests/steps_service/clients").join(script));
    client.arg(file("src/step_runner/wire/descriptors.bin"));
    client.arg(server.socket()).arg(server.work_dir()).args(authority(&server.socket()));
    let said = run(&mut client).success();
    let (version, rest) = said.split_once('\n').unwrap();
    (version.strip_prefix("grpc ").unwrap().to_owned(), rest.to_owned())
}

#[test]
fn python_runs_jobs_whatever_it_says_as_authority() {
    let python = Path::new("/usr/bin/python3");
    let named = |socket: &Path| Some(authority(socket));
    for said in [play(python, "client.py", |_| None), play(python, "client.py", named)] {
        assert_eq!(said.1, expected("4", "UNKNOWN"));
    }
    // A name that has everything that a path can have.
    let odd = |_: &Path| Some("a:b:c@d[e]%2F%00!$&'()*+,;=~".to_owned());
    assert_eq!(play(python, "client.py", odd).1, expected("4", "UNKNOWN"));
}

#[test]
fn python_with_todays_library_runs_jobs() {
    let python = file("target/grpcio/bin/python");
    assert!(python.exists(), "no {}: run tests/support/grpcio.sh", python.display());
    let (version, said) = play(&python, "client.py", |_| None);
    assert_eq!(said, expected("4", "UNKNOWN"), "{version}");
    assert!(version.starts_with("1.85."), "{version}");
}

#[test]
fn ruby_runs_jobs_whatever_it_says_as_authority() {
    let ruby = Path::new("/usr/bin/ruby");
    let named = |socket: &Path| Some(authority(socket));
    for said in [play(ruby, "client.rb", |_| None), play(ruby, "client.rb", named)] {
        assert_eq!(said.1, expected("cancelled", "UNKNOWN"));
    }
}
