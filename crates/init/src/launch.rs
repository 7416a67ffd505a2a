//! The protocol of the launcher (`launcher.rs`): a program that starts processes for a larger one.
//!
//! The launcher gets messages on its standard input, a `SOCK_SEQPACKET` socket. [`LaunchMessage::Start`] comes with
//! descriptors: a pipe for [`LaunchReport`]s, standard output, standard error, a file with a [`LaunchRequest`], and
//! optionally the directory of a cgroup. The launcher ends when the socket is closed.

use std::path::Path;

/// Number of descriptors that come with [`LaunchMessage::Start`], without that of the cgroup.
pub const START_DESCRIPTORS: usize = 4;

const MESSAGE_BYTES: usize = 10;
const REPORT_BYTES: usize = 8;

/// A message to the launcher. Tokens identify processes: the sender chooses them, and uses each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchMessage {
    Start {
        token: u64,
    },
    /// Sends a signal to a process and its group, unless the process has ended.
    Signal {
        token: u64,
        signal: u8,
    },
    /// Kills a process and its group. From then on, the launcher treats the process as an orphan,
    /// and sends no reports about it.
    Abandon {
        token: u64,
    },
    /// Requests an [`OrphanReport`], which the launcher writes into the non-blocking pipe that
    /// comes with the message.
    Orphans,
}

impl LaunchMessage {
    /// Returns the message as bytes.
    pub fn encode(self) -> [u8; MESSAGE_BYTES] {
        let (token, kind, signal) = match self {
            LaunchMessage::Start { token } => (token, 0, 0),
            LaunchMessage::Signal { token, signal } => (token, 1, signal),
            LaunchMessage::Abandon { token } => (token, 2, 0),
            LaunchMessage::Orphans => (0, 3, 0),
        };
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..8].copy_from_slice(&token.to_le_bytes());
        bytes[8] = kind;
        bytes[9] = signal;
        bytes
    }

    /// Parses a message; returns `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (token, [kind, signal]) = bytes.split_first_chunk()? else { return None };
        let (token, signal) = (u64::from_le_bytes(*token), *signal);
        Some(match kind {
            0 => LaunchMessage::Start { token },
            1 => LaunchMessage::Signal { token, signal },
            2 => LaunchMessage::Abandon { token },
            3 => LaunchMessage::Orphans,
            _ => return None,
        })
    }
}

/// A program to execute, in its own process group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchRequest {
    pub work_dir: Vec<u8>,
    pub programs: ProgramPaths,
    pub argv: Vec<Vec<u8>>,
    /// Entries of the environment, `NAME=VALUE`.
    pub env: Vec<Vec<u8>>,
}

/// The path of the program to execute, or the paths at which it is searched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramPaths {
    Exact(Vec<u8>),
    /// Paths of which the first executable file is executed.
    Candidates(Vec<Vec<u8>>),
}

impl ProgramPaths {
    /// Returns the paths in the order in which they are tried.
    pub fn all(&self) -> &[Vec<u8>] {
        match self {
            ProgramPaths::Exact(path) => std::slice::from_ref(path),
            ProgramPaths::Candidates(paths) => paths,
        }
    }
}

impl LaunchRequest {
    /// Returns the request as bytes. The strings must not contain NUL.
    pub fn encode(&self) -> Vec<u8> {
        let candidates = match &self.programs {
            ProgramPaths::Exact(_) => None,
            ProgramPaths::Candidates(paths) => Some(paths.len()),
        };
        let candidates = candidates.map_or(String::new(), |count| count.to_string());
        let counts = [candidates, self.argv.len().to_string()].map(String::into_bytes);
        let all = counts.iter().chain([&self.work_dir]).chain(self.programs.all());
        let all: Vec<&[u8]> = all.chain(&self.argv).chain(&self.env).map(Vec::as_slice).collect();
        all.iter().flat_map(|text| [*text, b"\0"]).collect::<Vec<_>>().concat()
    }

    /// Parses a request; returns `None` if it is malformed.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut texts = bytes.strip_suffix(b"\0")?.split(|byte| *byte == 0);
        let count = |text: &[u8]| str::from_utf8(text).ok()?.parse::<usize>().ok();
        let (candidates, argv) = (texts.next()?, count(texts.next()?)?);
        let mut texts = texts.map(<[u8]>::to_vec);
        let work_dir = texts.next()?;
        let programs = match candidates {
            b"" => ProgramPaths::Exact(texts.next()?),
            candidates => {
                ProgramPaths::Candidates(texts.by_ref().take(count(candidates)?).collect())
            }
        };
        let argv = texts.by_ref().take(argv).collect();
        Some(LaunchRequest { work_dir, programs, argv, env: texts.collect() })
    }
}

/// The action that failed before a program was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchAction {
    /// The launcher could not create a process.
    Fork,
    /// The process could not prepare its streams.
    Setup,
    WorkDir,
    /// None of the paths is that of an executable file.
    Find,
    /// The program, by its index in [`ProgramPaths::all`], could not be executed.
    Execute(u16),
}

/// A report of the launcher about a process, or of the process itself until it executes its program.
///
/// `Ended` is the last report. `Failed` comes before `Ended`, and is the only report if no process
/// was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchReport {
    Started { pid: i32 },
    Failed { action: LaunchAction, errno: i32 },
    Ended { exit: ProcessExit },
}

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessExit {
    Exited(u8),
    Signalled(u8),
}

impl LaunchReport {
    /// Returns the report as bytes, which a pipe takes as a whole.
    pub fn encode(self) -> [u8; REPORT_BYTES] {
        let (kind, index, value) = match self {
            LaunchReport::Started { pid } => (0, 0, pid),
            LaunchReport::Failed { action, errno } => match action {
                LaunchAction::Fork => (1, 0, errno),
                LaunchAction::Setup => (2, 0, errno),
                LaunchAction::WorkDir => (3, 0, errno),
                LaunchAction::Find => (4, 0, errno),
                LaunchAction::Execute(index) => (5, index, errno),
            },
            LaunchReport::Ended { exit: ProcessExit::Exited(code) } => (6, 0, code.into()),
            LaunchReport::Ended { exit: ProcessExit::Signalled(signal) } => (7, 0, signal.into()),
        };
        let mut bytes = [0; REPORT_BYTES];
        bytes[0] = kind;
        bytes[2..4].copy_from_slice(&u16::to_le_bytes(index));
        bytes[4..].copy_from_slice(&i32::to_le_bytes(value));
        bytes
    }

    /// Parses reports, as many as there are.
    pub fn decode_all(bytes: &[u8]) -> impl Iterator<Item = Option<Self>> {
        let (chunks, _) = bytes.as_chunks::<REPORT_BYTES>();
        chunks.iter().map(|chunk| {
            let [kind, _, index @ .., a, b, c, d] = *chunk;
            let (index, value) = (u16::from_le_bytes(index), i32::from_le_bytes([a, b, c, d]));
            let failed = |action| LaunchReport::Failed { action, errno: value };
            let byte = u8::try_from(value);
            Some(match kind {
                0 => LaunchReport::Started { pid: value },
                1 => failed(LaunchAction::Fork),
                2 => failed(LaunchAction::Setup),
                3 => failed(LaunchAction::WorkDir),
                4 => failed(LaunchAction::Find),
                5 => failed(LaunchAction::Execute(index)),
                6 => LaunchReport::Ended { exit: ProcessExit::Exited(byte.ok()?) },
                7 => LaunchReport::Ended { exit: ProcessExit::Signalled(byte.ok()?) },
                _ => return None,
            })
        })
    }
}

/// The orphans of all processes that a launcher has started: its children, except running commands.
///
/// Only the launcher knows them: no other process reaps its children, or knows a process that it has just started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanReport(pub Vec<u32>);

impl OrphanReport {
    /// Returns the report as bytes: the number of processes and their ids.
    pub fn encode(&self) -> Vec<u8> {
        let count = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        [count].iter().chain(&self.0).flat_map(|number| number.to_le_bytes()).collect()
    }

    /// Parses a report; returns `None` if it is truncated, because the pipe was full.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, _) = bytes.as_chunks();
        let numbers: Vec<u32> = numbers.iter().map(|number| u32::from_le_bytes(*number)).collect();
        let (count, ids) = numbers.split_first()?;
        (*count as usize == ids.len()).then(|| OrphanReport(ids.to_vec()))
    }
}

/// Returns whether a path is that of an executable file.
pub fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_reports_are_read_as_they_were_written() {
        for message in [
            LaunchMessage::Start { token: u64::MAX },
            LaunchMessage::Signal { token: 7, signal: 15 },
            LaunchMessage::Abandon { token: 7 },
            LaunchMessage::Orphans,
        ] {
            assert_eq!(LaunchMessage::decode(&message.encode()), Some(message));
        }
        for orphans in [vec![], vec![1, u32::MAX]] {
            let report = OrphanReport(orphans);
            let bytes = report.encode();
            assert_eq!(OrphanReport::decode(&bytes), Some(report));
            assert_eq!(OrphanReport::decode(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(LaunchMessage::decode(b"short"), None);
        let actions = [
            LaunchAction::Fork,
            LaunchAction::Setup,
            LaunchAction::WorkDir,
            LaunchAction::Find,
            LaunchAction::Execute(513),
        ];
        let mut reports: Vec<_> =
            actions.map(|action| LaunchReport::Failed { action, errno: 13 }).to_vec();
        reports.push(LaunchReport::Started { pid: i32::MAX });
        reports.push(LaunchReport::Ended { exit: ProcessExit::Exited(255) });
        reports.push(LaunchReport::Ended { exit: ProcessExit::Signalled(9) });
        let bytes: Vec<u8> = reports.iter().flat_map(|report| report.encode()).collect();
        let decoded: Option<Vec<_>> = LaunchReport::decode_all(&bytes).collect();
        assert_eq!(decoded, Some(reports));
        assert!(LaunchReport::decode_all(&[9; REPORT_BYTES]).eq([None]));
    }

    #[test]
    fn empty_strings_of_a_request_are_kept() {
        let text = |text: &str| text.as_bytes().to_vec();
        for (argv, env) in [
            (vec![text("a"), text(""), text("c d")], vec![text("A="), text("B=1")]),
            (vec![text("")], vec![]),
        ] {
            let request = LaunchRequest {
                work_dir: text("/"),
                programs: ProgramPaths::Candidates(vec![text("/bin/a"), text("/usr/bin/a")]),
                argv,
                env,
            };
            assert_eq!(LaunchRequest::decode(&request.encode()), Some(request.clone()));
            let request = LaunchRequest { programs: ProgramPaths::Exact(text("./a")), ..request };
            assert_eq!(LaunchRequest::decode(&request.encode()), Some(request));
        }
        for bad in [&b""[..], b"\0", b"1\0x\0/\0", b"\x001\0/", b"\x001\0/\0"] {
            assert_eq!(LaunchRequest::decode(bad), None);
        }
    }
}
