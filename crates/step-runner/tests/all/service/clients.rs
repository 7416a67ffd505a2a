//! Clients based on gRPC's C library: Python's and Ruby's.
//!
//! They send the path of the socket as `:authority`, which h2 rejects by default. Debian 12's version (1.51)
//! does not yet, so the authority is also set explicitly; `tests/support/grpcio.sh` installs a Python library
//! that does.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_testsupport::program::run;

use crate::service::setup::ServerFixture;

/// Returns the common output of both clients.
fn expected_output(cancelled: &str, unknown: &str) -> String {
    format!(
        "healthy true\nlog true\nstatus step \"a\": exec: exit status 3\njobs 0\n\
         cancelled {cancelled}\nerror {unknown} no job with id \"2\"\n"
    )
}

fn file(name: &str) -> PathBuf {
    oci_hooks_testsupport::program::repository(name)
}

/// Returns a path encoded like the C library's `:authority`.
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

/// Runs a client, and returns the version of its library and the rest of its output.
#[track_caller]
fn run_client(
    program: &Path,
    script: &str,
    authority: impl Fn(&Path) -> Option<String>,
) -> (String, String) {
    let server = ServerFixture::start();
    let mut client = Command::new(program);
    client.arg(file("crates/step-runner/tests/all/service/clients").join(script));
    client.arg(file("crates/step-runner/src/wire/descriptors.bin"));
    client.arg(server.socket()).arg(server.work_dir()).args(authority(&server.socket()));
    let said = run(&mut client).success();
    let (version, rest) = said.split_once('\n').unwrap();
    (version.strip_prefix("grpc ").unwrap().to_owned(), rest.to_owned())
}

#[test]
fn python_client_runs_jobs_with_any_authority() {
    let python = Path::new("/usr/bin/python3");
    let named = |socket: &Path| Some(authority(socket));
    for said in [run_client(python, "client.py", |_| None), run_client(python, "client.py", named)]
    {
        assert_eq!(said.1, expected_output("4", "UNKNOWN"));
    }
    // A name with all special characters of paths.
    let odd = |_: &Path| Some("a:b:c@d[e]%2F%00!$&'()*+,;=~".to_owned());
    assert_eq!(run_client(python, "client.py", odd).1, expected_output("4", "UNKNOWN"));
}

#[test]
fn current_python_library_runs_jobs() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let python = target.with_file_name("grpcio/bin/python");
    assert!(python.exists(), "no {}: run tests/support/grpcio.sh", python.display());
    let (version, said) = run_client(&python, "client.py", |_| None);
    assert_eq!(said, expected_output("4", "UNKNOWN"), "{version}");
    assert!(version.starts_with("1.85."), "{version}");
}

#[test]
fn ruby_client_runs_jobs_with_any_authority() {
    let ruby = Path::new("/usr/bin/ruby");
    let named = |socket: &Path| Some(authority(socket));
    for said in [run_client(ruby, "client.rb", |_| None), run_client(ruby, "client.rb", named)] {
        assert_eq!(said.1, expected_output("cancelled", "UNKNOWN"));
    }
}
