//! What a probe is asked to try, and what it answers: lines of text. Compiled into the program that tries it and into
//! those that ask.

use std::fmt::{self, Write as _};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Where the kernel finds the program that a task is for, if the task is executed.
const INTERPRETER: &str = "#!/probe";

/// What a probe does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// It tries each of these, and ends.
    Try { word: String, attempts: Vec<Attempt> },
    /// It is what others try to reach, until it is killed: it answers with the token on all of its addresses and
    /// sockets, has the token in files of these directories, and the mark in its command line.
    Serve { word: String, token: String, mark: String, directories: Vec<PathBuf> },
}

/// Something that a probe tries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Loopback, a socket, a file and the process of the probe itself: one that does not reach these shows nothing.
    Own,
    Tcp(SocketAddr),
    /// The same where a rule says no, again and again: the kernel says no to few packets a second.
    Rule(SocketAddr),
    /// A port of the host that is the default gateway where this is tried.
    Gateway(u16),
    Udp(SocketAddr),
    /// A socket whose name is no path.
    Abstract(String),
    Socket(PathBuf),
    Read(PathBuf),
    /// Opens a file, and writes nothing.
    Write(PathBuf),
    /// A process that has a word in its command line.
    Process(String),
}

/// What came of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was reached, and said this, which may be nothing.
    Reached(String),
    /// Nothing listens there.
    Refused,
    /// A rule or a router on the way said no.
    Rejected,
    NoRoute,
    NoAnswer,
    Absent,
    Denied,
    /// It could not be tried, and why.
    Untried(String),
}

/// Something that a probe says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Outcome {
        index: usize,
        outcome: Outcome,
    },
    /// By this it is reached.
    Serves(Attempt),
    /// There is no more.
    End,
}

impl Task {
    /// Returns what a text says; none if it is no task.
    pub fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines().filter(|line| !line.starts_with("#!"));
        let words: Vec<_> = lines.next()?.split(' ').map(str::to_owned).collect();
        match words.as_slice() {
            [kind, word] if kind == "try" => {
                let attempts = lines.map(Attempt::read).collect::<Option<_>>()?;
                Some(Task::Try { word: word.clone(), attempts })
            }
            [kind, word, token, mark] if kind == "serve" => {
                let [word, token, mark] = [word, token, mark].map(Clone::clone);
                Some(Task::Serve {
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

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{INTERPRETER}")?;
        match self {
            Task::Try { word, attempts } => {
                writeln!(f, "try {word}")?;
                attempts.iter().try_for_each(|attempt| writeln!(f, "{attempt}"))
            }
            Task::Serve { word, token, mark, directories } => {
                writeln!(f, "serve {word} {token} {mark}")?;
                directories.iter().try_for_each(|path| writeln!(f, "{}", path.display()))
            }
        }
    }
}

impl Attempt {
    /// Returns what a line says; none if it is no attempt.
    pub fn read(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        Some(match kind {
            "own" => Attempt::Own,
            "tcp" => Attempt::Tcp(rest.parse().ok()?),
            "rule" => Attempt::Rule(rest.parse().ok()?),
            "gateway" => Attempt::Gateway(rest.parse().ok()?),
            "udp" => Attempt::Udp(rest.parse().ok()?),
            "abstract" => Attempt::Abstract(rest.to_owned()),
            "socket" => Attempt::Socket(rest.into()),
            "read" => Attempt::Read(rest.into()),
            "write" => Attempt::Write(rest.into()),
            "process" => Attempt::Process(rest.to_owned()),
            _ => return None,
        })
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attempt::Own => write!(f, "own"),
            Attempt::Tcp(address) => write!(f, "tcp {address}"),
            Attempt::Rule(address) => write!(f, "rule {address}"),
            Attempt::Gateway(port) => write!(f, "gateway {port}"),
            Attempt::Udp(address) => write!(f, "udp {address}"),
            Attempt::Abstract(name) => write!(f, "abstract {name}"),
            Attempt::Socket(path) => write!(f, "socket {}", path.display()),
            Attempt::Read(path) => write!(f, "read {}", path.display()),
            Attempt::Write(path) => write!(f, "write {}", path.display()),
            Attempt::Process(mark) => write!(f, "process {mark}"),
        }
    }
}

impl Outcome {
    fn read(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(": ").unwrap_or((text, ""));
        Some(match kind {
            "reached" => Outcome::Reached(rest.to_owned()),
            "refused" => Outcome::Refused,
            "rejected" => Outcome::Rejected,
            "no route" => Outcome::NoRoute,
            "no answer" => Outcome::NoAnswer,
            "absent" => Outcome::Absent,
            "denied" => Outcome::Denied,
            "not tried" => Outcome::Untried(rest.to_owned()),
            _ => return None,
        })
    }

    /// Returns what it is called in tables.
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Reached(_) => "reached",
            Outcome::Refused => "refused",
            Outcome::Rejected => "rejected",
            Outcome::NoRoute => "no route",
            Outcome::NoAnswer => "no answer",
            Outcome::Absent => "absent",
            Outcome::Denied => "denied",
            Outcome::Untried(_) => "not tried",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        match self {
            Outcome::Reached(text) | Outcome::Untried(text) => {
                f.write_str(": ")?;
                // On one line, whatever it was.
                let plain = |c: char| if c.is_ascii_graphic() { c } else { ' ' };
                text.chars().map(plain).try_for_each(|c| f.write_char(c))
            }
            _ => Ok(()),
        }
    }
}

impl Said {
    /// Returns what a line of a log says after the word of a task; none if the word is not there.
    pub fn read(word: &str, line: &str) -> Option<Self> {
        let (_, said) = line.split_once(word)?;
        let (first, rest) = said.trim_start().split_once(' ').unwrap_or((said.trim(), ""));
        match first {
            "end" => Some(Said::End),
            "serves" => Some(Said::Serves(Attempt::read(rest)?)),
            index => {
                Some(Said::Outcome { index: index.parse().ok()?, outcome: Outcome::read(rest)? })
            }
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Said::Outcome { index, outcome } => write!(f, "{index} {outcome}"),
            Said::Serves(attempt) => write!(f, "serves {attempt}"),
            Said::End => write!(f, "end"),
        }
    }
}

/// Returns where the default route of this network namespace leads.
pub fn default_gateway() -> Option<Ipv4Addr> {
    let routes = fs::read_to_string("/proc/thread-self/net/route").ok()?;
    routes.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, "00000000", gateway, ..] = fields[..] else { return None };
        // As it is in memory.
        let gateway = u32::from_str_radix(gateway, 16).ok()?.to_ne_bytes();
        (gateway != [0; 4]).then(|| gateway.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let address = "[fd00:ec2::254]:80".parse().unwrap();
        let attempts = [
            Attempt::Own,
            Attempt::Tcp(address),
            Attempt::Rule(address),
            Attempt::Gateway(80),
            Attempt::Udp(address),
            Attempt::Abstract("a".to_owned()),
            Attempt::Socket("/a b".into()),
            Attempt::Read("/a".into()),
            Attempt::Write("/a".into()),
            Attempt::Process("a".to_owned()),
        ];
        for attempt in &attempts {
            assert_eq!(Attempt::read(&attempt.to_string()).as_ref(), Some(attempt));
            let said = Said::Serves(attempt.clone());
            assert_eq!(Said::read("w", &format!("12:00 w {said}")), Some(said));
        }
        let task = Task::Try { word: "w".to_owned(), attempts: attempts.to_vec() };
        assert_eq!(Task::read(&task.to_string()), Some(task));
        let [word, token, mark] = ["w", "t", "m"].map(str::to_owned);
        let task = Task::Serve { word, token, mark, directories: vec!["/a b".into()] };
        assert_eq!(Task::read(&task.to_string()), Some(task));
        let outcomes = [
            Outcome::Reached(String::new()),
            Outcome::Reached("a: b".to_owned()),
            Outcome::Refused,
            Outcome::Rejected,
            Outcome::NoRoute,
            Outcome::NoAnswer,
            Outcome::Absent,
            Outcome::Denied,
            Outcome::Untried("a".to_owned()),
        ];
        for outcome in outcomes {
            let said = Said::Outcome { index: 7, outcome };
            assert_eq!(Said::read("w", &format!("w {said}")), Some(said));
        }
        assert_eq!(Said::read("w", "w end"), Some(Said::End));
        assert_eq!(Said::read("w", "STEP 1: FROM scratch"), None);
        let lines = Outcome::Reached("a\nw end".to_owned()).to_string();
        assert_eq!(lines, "reached: a w end");
    }
}
