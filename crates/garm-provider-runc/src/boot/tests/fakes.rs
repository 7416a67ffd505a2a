//! A fake GARM and a fake instance.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks_testsupport::http::{WebRequest, WebResponse};
use serde_json::Value;

use crate::boot::sequence::ReadyRunner;
use crate::boot::*;
use crate::http::fake::{FakeServer, no_reply, reply};
use crate::http::{HttpClient, HttpOptions, HttpRetry};

pub const TOKEN: &str = "eyJINSTANCE.T0KEN";
pub const REGISTRATION: &str = "REG1STRATION";
pub const CA: &str = "-----BEGIN CERTIFICATE-----\nQ0E=\n-----END CERTIFICATE-----";

/// A fake GARM with one instance.
#[derive(Default)]
pub struct FakeGarm {
    pub status: String,
    was_token_given: bool,
    jit: bool,
    template: Option<&'static str>,
    /// Statuses of the first responses; 0 cuts the connection.
    pub faults: VecDeque<u16>,
    pub refused: BTreeMap<&'static str, u16>,
}

impl FakeGarm {
    pub(super) fn jit() -> Self {
        FakeGarm { jit: true, ..FakeGarm::default() }
    }

    pub(super) fn with_template(template: &'static str) -> Self {
        FakeGarm { template: Some(template), ..FakeGarm::default() }
    }

    pub(super) fn serve(mut self) -> FakeServer {
        FakeServer::serve(move |request| self.answer(request))
    }

    pub(super) fn answer(&mut self, request: &WebRequest) -> WebResponse {
        match self.faults.pop_front() {
            Some(0) => return no_reply(),
            Some(status) => return reply(status, b"oops"),
            None => {}
        }
        if let Some(status) = self.refused.get(&*request.path) {
            return reply(*status, br#"{"error":"Refused","details":"no"}"#);
        }
        let is_known = request.header("authorization") == Some(&format!("Bearer {TOKEN}"));
        // Like the real GARM: the token is invalid once the runner is idle or has failed.
        if !is_known || matches!(self.status.as_str(), "idle" | "failed") {
            return reply(401, br#"{"error":"Authentication failed"}"#);
        }
        assert_eq!(request.header("accept"), Some("application/json"));
        match (&*request.method, &*request.path) {
            ("POST", "/c/status") => {
                let document: Value = serde_json::from_str(&request.body).unwrap();
                let next = document["status"].as_str().unwrap();
                assert!(document["message"].is_string());
                match (self.status.as_str(), next) {
                    ("" | "installing", "installing" | "failed") | ("installing", "idle") => {}
                    _ => return reply(400, b"invalid runner status transition"),
                }
                if next == "idle" {
                    let id = document.get("agent_id");
                    assert!(id.is_some_and(|id| id.is_i64() || id.is_null()), "{document}");
                }
                next.clone_into(&mut self.status);
                WebResponse::ok(b"")
            }
            ("POST", "/c/system-info/") => WebResponse::ok(b""),
            ("GET", "/m/credentials/runner") if self.jit => {
                WebResponse::ok("\u{feff}{\"AgentId\":\"123\",\"AgentName\":\"x\"}".as_bytes())
            }
            ("GET", "/m/credentials/credentials") if self.jit => WebResponse::ok(b"{\"c\":1}"),
            ("GET", "/m/credentials/credentials_rsaparams") if self.jit => {
                WebResponse::ok(b"\x00\xffr")
            }
            ("GET", "/m/runner-registration-token/") if !self.jit && !self.was_token_given => {
                self.was_token_given = true;
                WebResponse::ok(REGISTRATION.as_bytes())
            }
            ("GET", "/m/runner-registration-token/") => WebResponse::status(401),
            ("GET", "/m/install-script/") => match self.template {
                Some(script) => WebResponse::ok(script.as_bytes()),
                None => reply(409, br#"{"error":"Conflict","details":"no template"}"#),
            },
            other => panic!("GARM has no {other:?}"),
        }
    }
}

/// A file or symlink of an instance.
#[derive(Clone, Debug, PartialEq)]
pub enum GuestFile {
    File(Vec<u8>, u32, GuestIds),
    Link(PathBuf, GuestIds),
}

pub(super) type GuestFiles = BTreeMap<PathBuf, GuestFile>;
type GuestProgram = Box<dyn FnMut(&GuestCommand, &mut GuestFiles) -> i32>;

pub(super) struct FakeGuest {
    pub files: RefCell<GuestFiles>,
    pub commands: Vec<GuestCommand>,
    pub notes: Vec<String>,
    pub written: RefCell<Vec<Vec<u8>>>,
    pub says: Vec<&'static str>,
    /// Number of `idle` reports before the runner exits.
    pub stays_for: usize,
    /// If set, programs run until their timeout.
    pub hangs: bool,
    program: GuestProgram,
}

impl FakeGuest {
    pub(super) fn new(
        program: impl FnMut(&GuestCommand, &mut GuestFiles) -> i32 + 'static,
    ) -> Self {
        let guest = FakeGuest {
            files: RefCell::default(),
            commands: Vec::new(),
            notes: Vec::new(),
            written: RefCell::default(),
            says: vec!["2026-11-22 18:00:00Z: Listening for Jobs", "x declare successfully"],
            stays_for: 1,
            hangs: false,
            program: Box::new(program),
        };
        guest.put_file("/etc/os-release", "ID=debian\nVERSION_ID=\"12\"\n");
        guest.put_file(
            "/etc/passwd",
            "root:x:0:0::/root:/bin/sh\nbuilder:x:1001:1001::/h:/bin/sh\n",
        );
        guest
    }

    pub(super) fn put_file(&self, path: &str, content: &str) {
        let file = GuestFile::File(content.into(), 0o644, GuestIds::ROOT);
        self.files.borrow_mut().insert(path.into(), file);
    }

    pub(super) fn node(&self, path: &str) -> Option<GuestFile> {
        self.files.borrow().get(Path::new(path)).cloned()
    }

    pub(super) fn text(&self, path: &str) -> String {
        match self.node(path) {
            Some(GuestFile::File(content, ..)) => String::from_utf8(content).unwrap(),
            other => panic!("{path} is {other:?}"),
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.commands.iter().map(|command| command.args.join(" ")).collect()
    }

    /// Returns all files, arguments and notes that the instance has received.
    pub fn received_text(&self) -> String {
        let written = self.written.borrow();
        let written: Vec<_> = written.iter().map(|c| String::from_utf8_lossy(c)).collect();
        let commands: String = self.commands.iter().map(command_text).collect();
        format!("{written:?} {commands} {:?} {:?}", self.notes, self.files.borrow().keys())
    }
}

pub(super) fn command_text(command: &GuestCommand) -> String {
    format!("{:?} {:?} {}", command, command.cwd, String::from_utf8_lossy(&command.stdin))
}

/// A fake instance whose runner exits only after GARM has received its status.
struct AttendedGuest<'a> {
    guest: &'a mut FakeGuest,
    server: &'a FakeServer,
}

impl Guest for AttendedGuest<'_> {
    fn run_watched(
        &mut self,
        command: &GuestCommand,
        watcher: &mut dyn OutputWatcher,
    ) -> Result<i32, GuestError> {
        let code = self.guest.run_watched(command, watcher)?;
        let says = |text| self.guest.says.iter().any(|line| line.contains(text));
        let listens = match &*command.args[command.args.len() - 1] {
            line if line.ends_with("run.sh") => says("Listening for Jobs"),
            "--once" => says("declare successfully"),
            _ => false,
        };
        let is_idle = |line: &String| line.ends_with(" idle");
        while listens
            && requests(self.server).iter().filter(|line| is_idle(line)).count()
                < self.guest.stays_for
        {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        Ok(code)
    }

    fn note(&mut self, text: &str) {
        self.guest.note(text);
    }

    fn write(
        &self,
        path: &Path,
        content: &[u8],
        mode: u32,
        owner: GuestIds,
    ) -> Result<(), GuestError> {
        self.guest.write(path, content, mode, owner)
    }

    fn link(&self, path: &Path, target: &Path, owner: GuestIds) -> Result<(), GuestError> {
        self.guest.link(path, target, owner)
    }

    fn read(&self, path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, GuestError> {
        self.guest.read(path, limit_bytes)
    }

    fn remove(&self, path: &Path) -> Result<(), GuestError> {
        self.guest.remove(path)
    }
}

impl Guest for FakeGuest {
    fn run_watched(
        &mut self,
        command: &GuestCommand,
        watcher: &mut dyn OutputWatcher,
    ) -> Result<i32, GuestError> {
        assert!(!command.timeout.is_zero());
        self.commands.push(command.clone());
        self.says.iter().for_each(|line| watcher.line(line));
        if self.hangs && watcher.deadline().is_some() {
            let program = command.args[0].clone();
            return Err(GuestError::TimedOut { program, timeout: command.timeout });
        }
        Ok((self.program)(command, self.files.get_mut()))
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    fn write(
        &self,
        path: &Path,
        content: &[u8],
        mode: u32,
        owner: GuestIds,
    ) -> Result<(), GuestError> {
        self.written.borrow_mut().push(content.to_vec());
        let file = GuestFile::File(content.to_vec(), mode, owner);
        self.files.borrow_mut().insert(path.to_owned(), file);
        Ok(())
    }

    fn link(&self, path: &Path, target: &Path, owner: GuestIds) -> Result<(), GuestError> {
        self.files.borrow_mut().insert(path.to_owned(), GuestFile::Link(target.to_owned(), owner));
        Ok(())
    }

    fn read(&self, path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, GuestError> {
        match self.files.borrow().get(path) {
            Some(GuestFile::File(content, ..)) => {
                assert!(content.len() as u64 <= limit_bytes);
                Ok(Some(content.clone()))
            }
            Some(GuestFile::Link(target, _)) => self.read(target, limit_bytes),
            None => Ok(None),
        }
    }

    fn remove(&self, path: &Path) -> Result<(), GuestError> {
        self.files.borrow_mut().remove(path);
        Ok(())
    }
}

pub const RUNNER: GuestIds = GuestIds { uid: 1001, gid: 1002 };

pub(super) fn runner() -> RunnerSpec {
    RunnerSpec {
        forge: Forge::Github,
        dir: "/opt/runner".into(),
        program: "/opt/runner/act_runner".into(),
        uid: RUNNER.uid,
        gid: RUNNER.gid,
        home: "/home/builder".into(),
        jit: true,
        url: "https://forge.example/acme".into(),
        name: "garm-1".into(),
        labels: vec!["a".into(), "runner-controller-id=7".into()],
        group: String::new(),
        is_downloaded: true,
        install_dependencies: true,
    }
}

pub(super) fn spec(server: &FakeServer, runner: Option<RunnerSpec>) -> BootSpec {
    BootSpec {
        callback_url: server.url("/c"),
        metadata_url: server.url("/m"),
        token: TOKEN.into(),
        http: HttpOptions::default(),
        env: BTreeMap::new(),
        packages: Vec::new(),
        pre_install: BTreeMap::new(),
        runner,
        timeout: Duration::from_secs(600),
        warning: None,
    }
}

/// Boots an instance and runs its runner until it exits; returns the runner's command and id.
pub fn boot_and_run(
    server: &FakeServer,
    spec: &BootSpec,
    guest: &mut FakeGuest,
) -> Result<ReadyRunner, BootError> {
    let http = HttpClient::new(&HttpOptions::default()).unwrap();
    let retry = HttpRetry { attempts: 5, pause: Duration::ZERO };
    let mut attended = AttendedGuest { guest: &mut *guest, server };
    let result = boot(spec, &mut attended, &http, retry);
    // The last command is removed, because GARM's script contains the token.
    let run = result.is_ok().then(|| guest.commands.pop().expect("it was run"));
    assert!(!guest.received_text().contains(TOKEN), "the instance knows the token");
    if let Err(error) = &result {
        assert!(!format!("{error:?}").contains(TOKEN));
    }
    result.map(|()| {
        let idle = posted_bodies(server, "/c/status").pop().unwrap();
        let agent_id = idle["agent_id"].as_i64();
        ReadyRunner { command: run.expect("it went well"), agent_id }
    })
}

/// Returns the requests as `METHOD path status`, with the status of posted reports.
pub fn requests(server: &FakeServer) -> Vec<String> {
    let line = |request: &WebRequest| {
        let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
        let status = body["status"].as_str().unwrap_or("");
        format!("{} {} {status}", request.method, request.path).trim_end().to_owned()
    };
    server.seen_requests().iter().map(line).collect()
}

pub(super) fn posted_bodies(server: &FakeServer, path: &str) -> Vec<Value> {
    let seen = server.seen_requests();
    let to_it = seen.iter().filter(|request| request.method == "POST" && request.path == path);
    to_it.map(|request| serde_json::from_str(&request.body).unwrap()).collect()
}

/// Returns the message of the last report, which must be `failed`.
#[track_caller]
pub fn failure_message(server: &FakeServer) -> String {
    let last = posted_bodies(server, "/c/status").pop().unwrap();
    assert_eq!(last["status"], "failed", "{last}");
    last["message"].as_str().unwrap().to_owned()
}

pub(super) fn variable<'a>(command: &'a GuestCommand, name: &str) -> Option<&'a str> {
    let mut found = command.env.iter().filter(|(found, _)| found == name);
    let value = found.next().map(|(_, value)| value.as_str());
    assert!(found.next().is_none(), "{name} is there twice");
    value
}
