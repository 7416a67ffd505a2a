//! A GARM and an instance that are played.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::garm::boot::sequence::{Ready, boot_patiently};
use crate::garm::boot::*;
use crate::garm::http::fake::{Fake, Reply, Seen};
use crate::garm::http::{Http, HttpOptions, Proxy, Retry};

pub const TOKEN: &str = "eyJINSTANCE.T0KEN";
pub const REGISTRATION: &str = "REG1STRATION";
pub const CA: &str = "-----BEGIN CERTIFICATE-----\nQ0E=\n-----END CERTIFICATE-----";

/// What GARM has for an instance, and what it makes of requests.
#[derive(Default)]
pub struct Garm {
    pub status: String,
    was_token_given: bool,
    jit: bool,
    template: Option<&'static str>,
    /// Answers that come before the right ones.
    pub faults: VecDeque<u16>,
    pub refused: BTreeMap<&'static str, u16>,
}

impl Garm {
    pub(super) fn jit() -> Self {
        Garm { jit: true, ..Garm::default() }
    }

    pub(super) fn with_template(template: &'static str) -> Self {
        Garm { template: Some(template), ..Garm::default() }
    }

    pub(super) fn serve(mut self) -> Fake {
        Fake::serve(move |request| self.answer(request))
    }

    pub(super) fn answer(&mut self, request: &Seen) -> Reply {
        match self.faults.pop_front() {
            Some(0) => return Reply::cut(),
            Some(status) => return Reply::status(status, b"oops"),
            None => {}
        }
        if let Some(status) = self.refused.get(&*request.path) {
            return Reply::status(*status, br#"{"error":"Refused","details":"no"}"#);
        }
        let is_known = request.header("authorization") == Some(&format!("Bearer {TOKEN}"));
        // As the real one: the token is dead as soon as the runner waits, or never will.
        if !is_known || matches!(self.status.as_str(), "idle" | "failed") {
            return Reply::status(401, br#"{"error":"Authentication failed"}"#);
        }
        assert_eq!(request.header("accept"), Some("application/json"));
        match (&*request.method, &*request.path) {
            ("POST", "/c/status") => {
                let document: Value = serde_json::from_slice(&request.body).unwrap();
                let next = document["status"].as_str().unwrap();
                assert!(document["message"].is_string());
                match (self.status.as_str(), next) {
                    ("" | "installing", "installing" | "failed") | ("installing", "idle") => {}
                    _ => return Reply::status(400, b"invalid runner status transition"),
                }
                if next == "idle" {
                    let id = document.get("agent_id");
                    assert!(id.is_some_and(|id| id.is_i64() || id.is_null()), "{document}");
                }
                next.clone_into(&mut self.status);
                Reply::ok(b"")
            }
            ("POST", "/c/system-info/") => Reply::ok(b""),
            ("GET", "/m/credentials/runner") if self.jit => {
                Reply::ok("\u{feff}{\"AgentId\":\"123\",\"AgentName\":\"x\"}".as_bytes())
            }
            ("GET", "/m/credentials/credentials") if self.jit => Reply::ok(b"{\"c\":1}"),
            ("GET", "/m/credentials/credentials_rsaparams") if self.jit => Reply::ok(b"\x00\xffr"),
            ("GET", "/m/runner-registration-token/") if !self.jit && !self.was_token_given => {
                self.was_token_given = true;
                Reply::ok(REGISTRATION.as_bytes())
            }
            ("GET", "/m/runner-registration-token/") => Reply::status(401, b""),
            ("GET", "/m/install-script/") => match self.template {
                Some(script) => Reply::ok(script.as_bytes()),
                None => Reply::status(409, br#"{"error":"Conflict","details":"no template"}"#),
            },
            other => panic!("GARM has no {other:?}"),
        }
    }
}

/// A file of an instance: its content, or where it leads.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    File(Vec<u8>, u32, Owner),
    Link(PathBuf, Owner),
}

pub(super) type Files = BTreeMap<PathBuf, Node>;
type Program = Box<dyn FnMut(&GuestCommand, &mut Files) -> i32>;

pub(super) struct FakeGuest {
    pub files: RefCell<Files>,
    pub commands: Vec<GuestCommand>,
    pub notes: Vec<String>,
    pub written: RefCell<Vec<Vec<u8>>>,
    /// What the runner writes when it is run.
    pub says: Vec<&'static str>,
    /// How often GARM is told `idle` before the runner ends.
    pub stays_for: usize,
    /// Whether programs go on until their time is over.
    pub hangs: bool,
    program: Program,
}

impl FakeGuest {
    pub(super) fn new(program: impl FnMut(&GuestCommand, &mut Files) -> i32 + 'static) -> Self {
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
        guest.put("/etc/os-release", "ID=debian\nVERSION_ID=\"12\"\n");
        guest.put("/etc/passwd", "root:x:0:0::/root:/bin/sh\nbuilder:x:1001:1001::/h:/bin/sh\n");
        guest
    }

    pub(super) fn put(&self, path: &str, content: &str) {
        let file = Node::File(content.into(), 0o644, Owner::ROOT);
        self.files.borrow_mut().insert(path.into(), file);
    }

    pub(super) fn node(&self, path: &str) -> Option<Node> {
        self.files.borrow().get(Path::new(path)).cloned()
    }

    pub(super) fn text(&self, path: &str) -> String {
        match self.node(path) {
            Some(Node::File(content, ..)) => String::from_utf8(content).unwrap(),
            other => panic!("{path} is {other:?}"),
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.commands.iter().map(|command| command.args.join(" ")).collect()
    }

    /// Everything that the instance has ever been given.
    pub fn everything(&self) -> String {
        let written = self.written.borrow();
        let written: Vec<_> = written.iter().map(|c| String::from_utf8_lossy(c)).collect();
        let commands: String = self.commands.iter().map(everything).collect();
        format!("{written:?} {commands} {:?} {:?}", self.notes, self.files.borrow().keys())
    }
}

pub(super) fn everything(command: &GuestCommand) -> String {
    format!("{:?} {:?} {}", command, command.cwd, String::from_utf8_lossy(&command.stdin))
}

/// An instance whose runner does not end before GARM has heard of it.
struct Attended<'a> {
    guest: &'a mut FakeGuest,
    server: &'a Fake,
}

impl Guest for Attended<'_> {
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
        owner: Owner,
    ) -> Result<(), GuestError> {
        self.guest.write(path, content, mode, owner)
    }

    fn link(&self, path: &Path, target: &Path, owner: Owner) -> Result<(), GuestError> {
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
        owner: Owner,
    ) -> Result<(), GuestError> {
        self.written.borrow_mut().push(content.to_vec());
        let file = Node::File(content.to_vec(), mode, owner);
        self.files.borrow_mut().insert(path.to_owned(), file);
        Ok(())
    }

    fn link(&self, path: &Path, target: &Path, owner: Owner) -> Result<(), GuestError> {
        self.files.borrow_mut().insert(path.to_owned(), Node::Link(target.to_owned(), owner));
        Ok(())
    }

    fn read(&self, path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, GuestError> {
        match self.files.borrow().get(path) {
            Some(Node::File(content, ..)) => {
                assert!(content.len() as u64 <= limit_bytes);
                Ok(Some(content.clone()))
            }
            Some(Node::Link(target, _)) => self.read(target, limit_bytes),
            None => Ok(None),
        }
    }

    fn remove(&self, path: &Path) -> Result<(), GuestError> {
        self.files.borrow_mut().remove(path);
        Ok(())
    }
}

pub const RUNNER: Owner = Owner { uid: 1001, gid: 1002 };

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

pub(super) fn spec(server: &Fake, runner: Option<RunnerSpec>) -> BootSpec {
    BootSpec {
        callback_url: server.url("/c"),
        metadata_url: server.url("/m"),
        token: TOKEN.into(),
        ca_pem: String::new(),
        proxy: Proxy::default(),
        env: BTreeMap::new(),
        packages: Vec::new(),
        pre_install: BTreeMap::new(),
        runner,
        timeout: Duration::from_secs(60),
        warning: None,
    }
}

/// Boots an instance and has its runner run to the end; returns how that was run.
pub fn up(server: &Fake, spec: &BootSpec, guest: &mut FakeGuest) -> Result<Ready, BootError> {
    let http = Http::new(&HttpOptions::default()).unwrap();
    let retry = Retry { attempts: 5, pause: Duration::ZERO };
    let mut attended = Attended { guest: &mut *guest, server };
    let result = boot_patiently(spec, &mut attended, &http, retry);
    // GARM's script has the token in it.
    let run = result.is_ok().then(|| guest.commands.pop().expect("it was run"));
    assert!(!guest.everything().contains(TOKEN), "the instance knows the token");
    if let Err(error) = &result {
        assert!(!format!("{error:?}").contains(TOKEN));
    }
    result.map(|()| {
        let idle = posted(server, "/c/status").pop().unwrap();
        let agent_id = idle["agent_id"].as_i64();
        Ready { command: run.expect("it went well"), agent_id }
    })
}

/// Requests as `METHOD path status`, the last only of what is posted.
pub fn requests(server: &Fake) -> Vec<String> {
    let line = |request: &Seen| {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let status = body["status"].as_str().unwrap_or("");
        format!("{} {} {status}", request.method, request.path).trim_end().to_owned()
    };
    server.seen().iter().map(line).collect()
}

pub(super) fn posted(server: &Fake, path: &str) -> Vec<Value> {
    let seen = server.seen();
    let to_it = seen.iter().filter(|request| request.method == "POST" && request.path == path);
    to_it.map(|request| serde_json::from_slice(&request.body).unwrap()).collect()
}

/// Returns the reason of a failure that GARM was told last of all.
#[track_caller]
pub fn told(server: &Fake) -> String {
    let last = posted(server, "/c/status").pop().unwrap();
    assert_eq!(last["status"], "failed", "{last}");
    last["message"].as_str().unwrap().to_owned()
}

pub(super) fn variable<'a>(command: &'a GuestCommand, name: &str) -> Option<&'a str> {
    let mut found = command.env.iter().filter(|(found, _)| found == name);
    let value = found.next().map(|(_, value)| value.as_str());
    assert!(found.next().is_none(), "{name} is there twice");
    value
}
