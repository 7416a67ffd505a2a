//! Tasks of a probe and its messages, as lines of text. Compiled into the probe and into the
//! programs that run it.

use std::fmt::{self, Write as _};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// First line of a task's file. If the file is executed, the kernel runs the probe at `/probe`
/// with the file as its argument.
const INTERPRETER: &str = "#!/probe";

/// Task of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeTask {
    /// Tries all attempts, prints the outcomes on lines that begin with `word`, and exits.
    Try { word: String, attempts: Vec<ProbeAttempt> },
    /// Serves as the target of other probes until it is killed. Prints on lines that begin with
    /// `word` how to reach it, answers with `token` on all its addresses and sockets, has `token`
    /// in files in `directories`, and `mark` in its command line.
    Serve { word: String, token: String, mark: String, directories: Vec<PathBuf> },
}

/// Target that a probe tries to reach, and how it tries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeAttempt {
    /// The probe's own loopback address, socket, file and process, as a control experiment: if it
    /// cannot reach them, its other results prove nothing.
    Own,
    Tcp(SocketAddr),
    /// TCP address whose packets a firewall rule rejects. It is tried repeatedly, because the kernel
    /// sends only a few rejections a second.
    Rule(SocketAddr),
    /// Port of the default gateway in the probe's network.
    Gateway(u16),
    Udp(SocketAddr),
    /// Unix socket with an abstract name.
    Abstract(String),
    Socket(PathBuf),
    Read(PathBuf),
    /// Opens a file for writing, but writes nothing.
    Write(PathBuf),
    /// Process with a word in its command line.
    Process(String),
    /// Per-user limits of the kernel, such as that of inotify instances: a container shares those of
    /// the user who owns its user namespace.
    Limits,
}

/// Result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// Reached, with the answer, which may be empty.
    Reached(String),
    Refused,
    /// Rejected by a rule or a router on the way.
    Rejected,
    NoRoute,
    NoAnswer,
    Absent,
    Denied,
    /// The attempt was not made, for this reason.
    Untried(String),
}

/// Message of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeMessage {
    Outcome {
        index: usize,
        outcome: ProbeOutcome,
    },
    /// An attempt that reaches the probe, which serves as a target.
    Serves(ProbeAttempt),
    End,
}

impl ProbeTask {
    /// Parses a task; returns `None` if the text is not one.
    pub fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines().filter(|line| !line.starts_with("#!"));
        let words: Vec<_> = lines.next()?.split(' ').map(str::to_owned).collect();
        match words.as_slice() {
            [kind, word] if kind == "try" => {
                let attempts = lines.map(ProbeAttempt::read).collect::<Option<_>>()?;
                Some(ProbeTask::Try { word: word.clone(), attempts })
            }
            [kind, word, token, mark] if kind == "serve" => {
                let [word, token, mark] = [word, token, mark].map(Clone::clone);
                Some(ProbeTask::Serve {
                    word,
                    token,
                    mark,
                    directories: lines.map(PathBuf::from).collect(),
                })
            }
            _ => None,
        }
    }
}

impl fmt::Display for ProbeTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{INTERPRETER}")?;
        match self {
            ProbeTask::Try { word, attempts } => {
                writeln!(f, "try {word}")?;
                attempts.iter().try_for_each(|attempt| writeln!(f, "{attempt}"))
            }
            ProbeTask::Serve { word, token, mark, directories } => {
                writeln!(f, "serve {word} {token} {mark}")?;
                directories.iter().try_for_each(|path| writeln!(f, "{}", path.display()))
            }
        }
    }
}

impl ProbeAttempt {
    /// Parses an attempt; returns `None` if the line is not one.
    pub fn read(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        Some(match kind {
            "own" => ProbeAttempt::Own,
            "tcp" => ProbeAttempt::Tcp(rest.parse().ok()?),
            "rule" => ProbeAttempt::Rule(rest.parse().ok()?),
            "gateway" => ProbeAttempt::Gateway(rest.parse().ok()?),
            "udp" => ProbeAttempt::Udp(rest.parse().ok()?),
            "abstract" => ProbeAttempt::Abstract(rest.to_owned()),
            "socket" => ProbeAttempt::Socket(rest.into()),
            "read" => ProbeAttempt::Read(rest.into()),
            "write" => ProbeAttempt::Write(rest.into()),
            "process" => ProbeAttempt::Process(rest.to_owned()),
            "limits" => ProbeAttempt::Limits,
            _ => return None,
        })
    }
}

impl fmt::Display for ProbeAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeAttempt::Own => write!(f, "own"),
            ProbeAttempt::Tcp(address) => write!(f, "tcp {address}"),
            ProbeAttempt::Rule(address) => write!(f, "rule {address}"),
            ProbeAttempt::Gateway(port) => write!(f, "gateway {port}"),
            ProbeAttempt::Udp(address) => write!(f, "udp {address}"),
            ProbeAttempt::Abstract(name) => write!(f, "abstract {name}"),
            ProbeAttempt::Socket(path) => write!(f, "socket {}", path.display()),
            ProbeAttempt::Read(path) => write!(f, "read {}", path.display()),
            ProbeAttempt::Write(path) => write!(f, "write {}", path.display()),
            ProbeAttempt::Process(mark) => write!(f, "process {mark}"),
            ProbeAttempt::Limits => write!(f, "limits"),
        }
    }
}

impl ProbeOutcome {
    fn read(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(": ").unwrap_or((text, ""));
        Some(match kind {
            "reached" => ProbeOutcome::Reached(rest.to_owned()),
            "refused" => ProbeOutcome::Refused,
            "rejected" => ProbeOutcome::Rejected,
            "no route" => ProbeOutcome::NoRoute,
            "no answer" => ProbeOutcome::NoAnswer,
            "absent" => ProbeOutcome::Absent,
            "denied" => ProbeOutcome::Denied,
            "not tried" => ProbeOutcome::Untried(rest.to_owned()),
            _ => return None,
        })
    }

    /// Returns the name of the outcome in tables.
    pub fn word(&self) -> &'static str {
        match self {
            ProbeOutcome::Reached(_) => "reached",
            ProbeOutcome::Refused => "refused",
            ProbeOutcome::Rejected => "rejected",
            ProbeOutcome::NoRoute => "no route",
            ProbeOutcome::NoAnswer => "no answer",
            ProbeOutcome::Absent => "absent",
            ProbeOutcome::Denied => "denied",
            ProbeOutcome::Untried(_) => "not tried",
        }
    }
}

impl fmt::Display for ProbeOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        match self {
            ProbeOutcome::Reached(text) | ProbeOutcome::Untried(text) => {
                f.write_str(": ")?;
                // Replaces line breaks, to stay on one line.
                let plain = |c: char| if c.is_ascii_graphic() { c } else { ' ' };
                text.chars().map(plain).try_for_each(|c| f.write_char(c))
            }
            _ => Ok(()),
        }
    }
}

impl ProbeMessage {
    /// Parses the message after `word`, which marks the lines of a task in a log; returns `None` if
    /// the word is missing.
    pub fn read(word: &str, line: &str) -> Option<Self> {
        let (_, said) = line.split_once(word)?;
        let (first, rest) = said.trim_start().split_once(' ').unwrap_or((said.trim(), ""));
        match first {
            "end" => Some(ProbeMessage::End),
            "serves" => Some(ProbeMessage::Serves(ProbeAttempt::read(rest)?)),
            index => Some(ProbeMessage::Outcome {
                index: index.parse().ok()?,
                outcome: ProbeOutcome::read(rest)?,
            }),
        }
    }
}

impl fmt::Display for ProbeMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeMessage::Outcome { index, outcome } => write!(f, "{index} {outcome}"),
            ProbeMessage::Serves(attempt) => write!(f, "serves {attempt}"),
            ProbeMessage::End => write!(f, "end"),
        }
    }
}

/// Returns the default gateway of this network namespace.
pub fn default_gateway() -> Option<Ipv4Addr> {
    let routes = fs::read_to_string("/proc/thread-self/net/route").ok()?;
    routes.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, "00000000", gateway, ..] = fields[..] else { return None };
        // Bytes in the order in memory.
        let gateway = u32::from_str_radix(gateway, 16).ok()?.to_ne_bytes();
        (gateway != [0; 4]).then(|| gateway.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_trials_are_parsed() {
        let address = "[fd00:ec2::254]:80".parse().unwrap();
        let attempts = [
            ProbeAttempt::Own,
            ProbeAttempt::Tcp(address),
            ProbeAttempt::Rule(address),
            ProbeAttempt::Gateway(80),
            ProbeAttempt::Udp(address),
            ProbeAttempt::Abstract("a".to_owned()),
            ProbeAttempt::Socket("/a b".into()),
            ProbeAttempt::Read("/a".into()),
            ProbeAttempt::Write("/a".into()),
            ProbeAttempt::Process("a".to_owned()),
            ProbeAttempt::Limits,
        ];
        for attempt in &attempts {
            assert_eq!(ProbeAttempt::read(&attempt.to_string()).as_ref(), Some(attempt));
            let said = ProbeMessage::Serves(attempt.clone());
            assert_eq!(ProbeMessage::read("w", &format!("12:00 w {said}")), Some(said));
        }
        let task = ProbeTask::Try { word: "w".to_owned(), attempts: attempts.to_vec() };
        assert_eq!(ProbeTask::read(&task.to_string()), Some(task));
        let [word, token, mark] = ["w", "t", "m"].map(str::to_owned);
        let task = ProbeTask::Serve { word, token, mark, directories: vec!["/a b".into()] };
        assert_eq!(ProbeTask::read(&task.to_string()), Some(task));
        let outcomes = [
            ProbeOutcome::Reached(String::new()),
            ProbeOutcome::Reached("a: b".to_owned()),
            ProbeOutcome::Refused,
            ProbeOutcome::Rejected,
            ProbeOutcome::NoRoute,
            ProbeOutcome::NoAnswer,
            ProbeOutcome::Absent,
            ProbeOutcome::Denied,
            ProbeOutcome::Untried("a".to_owned()),
        ];
        for outcome in outcomes {
            let said = ProbeMessage::Outcome { index: 7, outcome };
            assert_eq!(ProbeMessage::read("w", &format!("w {said}")), Some(said));
        }
        assert_eq!(ProbeMessage::read("w", "w end"), Some(ProbeMessage::End));
        assert_eq!(ProbeMessage::read("w", "STEP 1: FROM scratch"), None);
        let lines = ProbeOutcome::Reached("a\nw end".to_owned()).to_string();
        assert_eq!(lines, "reached: a w end");
    }
}
