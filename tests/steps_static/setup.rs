//! Root file systems with the program in them, in a network of their own.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustls::ServerConfig;

use crate::support::git;
use crate::support::host::Host;
use crate::support::http::Server;
use crate::support::program::{self, Finished};
use crate::support::rootfs;
use crate::support::static_program;

/// What is in a root file system besides the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing but an empty `/tmp` and `/etc`, as in images without a distribution.
    Nothing,
    /// Busybox, and no C library: what a static program sees of Alpine is the same.
    Busybox,
}

/// A root file system; the program is `/step-runner`.
pub(crate) struct Root {
    pub(crate) host: Host,
    dir: PathBuf,
}

impl Root {
    pub(crate) fn new(content: Content) -> Self {
        let host = Host::new();
        let dir = host.path().join("root");
        fs::create_dir(&dir).unwrap();
        match content {
            Content::Nothing => {
                for name in ["etc", "proc", "tmp"] {
                    fs::create_dir(dir.join(name)).unwrap();
                }
            }
            Content::Busybox => rootfs::fill(&dir),
        }
        // Others can reach and use it.
        host.shell(&format!("chmod 711 {}; chmod 1777 {0}/root/tmp", host.path().display()));
        program::copy_program(&static_program::program("step-runner"), &dir.join("step-runner"));
        // What every runtime of containers mounts.
        host.shell(&format!(
            "cd {}; mount -t proc proc proc; mkdir -p dev; touch dev/null; mount --bind /dev/null dev/null",
            dir.display()
        ));
        Root { host, dir }
    }

    /// Writes a file; missing directories are made.
    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.dir.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Returns a command that runs the program as a user, `UID:GID`, with nothing in its environment but
    /// these variables.
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

    /// Runs a step file of the root as its root.
    pub(crate) fn run(&self, variables: &[(&str, &str)], file: &str) -> Finished {
        self.host.run(&mut self.command("0:0", variables, &["run", file]))
    }

    /// Serves the repository `r.git`, whose step prints `fetched`, at an address in the root's network.
    pub(crate) fn serve(&self, address: &str, tls: Option<Arc<ServerConfig>>) -> Server {
        let repositories = self.host.path().join("repositories");
        make_repository(&repositories);
        let listener = self.host.enter(|| TcpListener::bind(address)).unwrap();
        Server::start_at(listener, tls, move |request| git::answer(&repositories, request))
    }

    /// Writes a step file that runs the step of a repository.
    pub(crate) fn write_step(&self, url: &str) {
        let reference = format!("{{git: {{url: '{url}', rev: main, file: step.yml}}}}");
        self.write("step.yml", &format!("{{}}\n---\nrun: [{{name: far, func: {reference}}}]\n"));
    }

    /// Answers questions about names until the process ends: `dns.example` is 127.0.0.7, others are not.
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

/// Returns the answer to a question by DNS.
fn answer(question: &[u8]) -> Option<Vec<u8>> {
    let name = b"\x03dns\x07example\0";
    let end = 12 + question.get(12..)?.iter().position(|&byte| byte == 0)? + 1;
    let kind = question.get(end..end + 2)?;
    let is_known = question[12..end] == name[..];
    let has_address = is_known && kind == [0, 1];
    let mut answer = question[..2].to_vec();
    // No error, or no such name.
    answer.extend([0x81, if is_known { 0x80 } else { 0x83 }]);
    answer.extend([0, 1, 0, u8::from(has_address), 0, 0, 0, 0]);
    answer.extend(&question[12..end + 4]);
    if has_address {
        // The name of the question, an address, for a minute, of four bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 7]);
    }
    Some(answer)
}

fn make_repository(dir: &Path) {
    let script = r#"
        git init --quiet --initial-branch=main r.git
        cd r.git
        printf '{}\n---\nexec: {command: [/step-runner, --version]}\n' >step.yml
        git add .
        git -c user.name=a -c user.email=b commit --quiet --message=m
    "#;
    fs::create_dir(dir).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-ec", script]).current_dir(dir).env("GIT_CONFIG_NOSYSTEM", "1");
    program::run(shell.env("HOME", dir)).success();
}
