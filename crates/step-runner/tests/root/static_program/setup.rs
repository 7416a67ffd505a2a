//! Root file systems with the program in them, each in a network namespace.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::http::{WebResponse, WebServer};
use oci_hooks_testsupport::program::{self, FinishedCommand};
use oci_hooks_testsupport::{rootfs, static_program};
use rustls::ServerConfig;

/// Content of a root file system besides the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RootContent {
    /// An empty `/tmp` and `/etc`, as in images without a distribution.
    Nothing,
    /// Busybox without a C library, like Alpine for a static program.
    Busybox,
}

/// A root file system with the program as `/step-runner`.
pub(crate) struct ProgramRoot {
    pub(crate) host: TestHost,
    dir: PathBuf,
}

impl ProgramRoot {
    pub(crate) fn new(content: RootContent) -> Self {
        let host = TestHost::new();
        let dir = host.path().join("root");
        fs::create_dir(&dir).unwrap();
        match content {
            RootContent::Nothing => {
                for name in ["etc", "proc", "tmp"] {
                    fs::create_dir(dir.join(name)).unwrap();
                }
            }
            RootContent::Busybox => rootfs::fill(&dir),
        }
        // Accessible to other users.
        host.shell(&format!("chmod 711 {}; chmod 1777 {0}/root/tmp", host.path().display()));
        program::copy_program(&static_program::program("step-runner"), &dir.join("step-runner"));
        // Mounts that every container runtime creates.
        host.shell(&format!(
            "cd {}; mount -t proc proc proc; mkdir -p dev; touch dev/null; mount --bind /dev/null dev/null",
            dir.display()
        ));
        ProgramRoot { host, dir }
    }

    /// Writes a file and its missing parent directories.
    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.dir.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Returns a command that runs the program as a user, `UID:GID`, with exactly these environment variables.
    pub(crate) fn command(
        &self,
        user: &str,
        variables: &[(&str, &str)],
        words: &[&str],
    ) -> Command {
        let mut command = Command::new(program::find("chroot"));
        command.arg(format!("--userspec={user}")).arg(&self.dir).arg("/step-runner").args(words);
        command.env_clear().envs(variables.iter().copied());
        command
    }

    /// Runs a step file in the root file system, as user root.
    pub(crate) fn run(&self, variables: &[(&str, &str)], file: &str) -> FinishedCommand {
        self.host.run(&mut self.command("0:0", variables, &["run", file]))
    }

    /// Starts a registry without images at an address in the root's network.
    pub(crate) fn serve(&self, address: &str, tls: Arc<ServerConfig>) -> WebServer {
        let listener = self.host.enter(|| TcpListener::bind(address)).unwrap();
        WebServer::start_at(listener, Some(tls), |_| WebResponse::status(404))
    }

    /// Writes a step file that calls a step in an image of a registry.
    pub(crate) fn write_step(&self, registry: &str) {
        let reference =
            format!("{{oci: {{registry: '{registry}', repository: octo/step, tag: '1'}}}}");
        self.write("step.yml", &format!("{{}}\n---\nrun: [{{name: far, func: {reference}}}]\n"));
    }

    /// Answers DNS queries until the process ends: `dns.example` is 127.0.0.7, other names do not exist.
    pub(crate) fn answer_names(&self) {
        let socket = self.host.enter(|| UdpSocket::bind("127.0.0.1:53")).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                if let Some(answer) = answer(&buffer[..length]) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
    }
}

/// Returns the response to a DNS query.
fn answer(question: &[u8]) -> Option<Vec<u8>> {
    let name = b"\x03dns\x07example\0";
    let end = 12 + question.get(12..)?.iter().position(|&byte| byte == 0)? + 1;
    let kind = question.get(end..end + 2)?;
    let is_known = question[12..end] == name[..];
    let has_address = is_known && kind == [0, 1];
    let mut answer = question[..2].to_vec();
    // Response code: no error, or no such name.
    answer.extend([0x81, if is_known { 0x80 } else { 0x83 }]);
    answer.extend([0, 1, 0, u8::from(has_address), 0, 0, 0, 0]);
    answer.extend(&question[12..end + 4]);
    if has_address {
        // Pointer to the name in the query, type A, a TTL of a minute, four bytes of data.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 7]);
    }
    Some(answer)
}
