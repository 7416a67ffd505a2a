//! Process groups that commands leave behind.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// The file in a job's directory that names its process groups, for whoever cleans up after a
/// server that was killed.
const RECORD: &str = "groups";

/// How often processes that were asked to end are looked at.
const LOOK: Duration = Duration::from_millis(10);

/// The process groups of a job.
#[derive(Debug)]
pub(super) struct Groups {
    record: File,
    /// Groups whose first process has ended, but not all.
    left: Vec<Pid>,
}

impl Groups {
    pub(super) fn new(scratch: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let record = options.append(true).create(true).mode(0o600).open(scratch.join(RECORD))?;
        Ok(Groups { record, left: Vec::new() })
    }

    /// Records a group that has just been made.
    pub(super) fn record(&mut self, leader: Pid) -> io::Result<()> {
        let start = stat(leader).map_or(0, |stat| stat.start);
        // One call, so that a line is there or not.
        self.record.write_all(format!("{} {start}\n", leader.as_raw_nonzero()).as_bytes())
    }

    /// Remembers a group, whose first process has been waited for, if somebody else is in it.
    pub(super) fn leave(&mut self, group: Pid) {
        if kill_group(group, None) {
            self.left.push(group);
        }
    }

    /// Tells if no group is left.
    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Sends a signal to those that are left, and forgets those that are gone.
    pub(super) fn signal(&mut self, signal: Signal) {
        self.left.retain(|group| is_ours(*group) && kill_group(*group, Some(signal)));
    }

    /// Forgets those in which nobody lives.
    pub(super) fn look(&mut self) {
        let members = members();
        self.left.retain(|group| {
            members.iter().any(|member| member.group == group.as_raw_nonzero().get())
        });
    }
}

/// A number is given anew only when its group is gone, and then to a process of that number.
fn is_ours(group: Pid) -> bool {
    stat(group).is_none()
}

/// Sends a signal, or none to see if there is anybody; tells if there is.
fn kill_group(group: Pid, signal: Option<Signal>) -> bool {
    match signal {
        Some(signal) => kill_process_group(group, signal).is_ok(),
        None => rustix::process::test_kill_process_group(group).is_ok(),
    }
}

/// Kills what a job left whose server is gone: the process groups recorded in its directory, unless
/// their numbers are those of other processes by now. Of this boot, which the caller has to know.
pub fn kill_recorded(scratch: &Path) {
    let Ok(record) = fs::read_to_string(scratch.join(RECORD)) else { return };
    let groups: Vec<(i32, u64)> = record
        .lines()
        .filter_map(|line| {
            let (group, start) = line.split_once(' ')?;
            Some((group.parse().ok()?, start.parse().ok()?))
        })
        .collect();
    // Twice: a member may have been making another one.
    for _ in 0..2 {
        let members = members();
        for (group, start) in &groups {
            let Some(pid) = Pid::from_raw(*group) else { continue };
            // If the first process is there it is the recorded one, or the number is another's.
            let is_same = stat(pid).is_none_or(|leader| leader.start == *start);
            // Whoever is in the group came after its first process.
            let is_alive = members.iter().any(|m| m.group == *group && m.start >= *start);
            if is_same && is_alive {
                kill_group(pid, Some(Signal::KILL));
            }
        }
        thread::sleep(LOOK);
    }
}

/// Waits until `done`, or until the deadline.
pub(super) fn wait(deadline: Instant, mut done: impl FnMut(Duration) -> bool) {
    while !done(LOOK.min(deadline.saturating_duration_since(Instant::now()))) {
        if Instant::now() >= deadline {
            return;
        }
    }
}

/// What is known of a process.
struct Stat {
    group: i32,
    /// In clock ticks since the system started.
    start: u64,
    is_zombie: bool,
}

fn stat(pid: Pid) -> Option<Stat> {
    let mut file = File::open(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // More than it has, so that one call reads it.
    let mut buffer = [0; 1024];
    let length = file.read(&mut buffer).ok()?;
    parse(&String::from_utf8_lossy(&buffer[..length]))
}

/// See proc_pid_stat(5). The name is in brackets and may hold anything.
fn parse(stat: &str) -> Option<Stat> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let is_zombie = matches!(fields.next()?, "Z" | "X");
    let group = fields.nth(1)?.parse().ok()?;
    let start = fields.nth(16)?.parse().ok()?;
    Some(Stat { group, start, is_zombie })
}

/// Returns all processes that live.
fn members() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .filter_map(stat)
        .filter(|stat| !stat.is_zombie)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_whatever_its_name_is() {
        let text = "12 (a) Z (b) S 1 34 34 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5678 0 0\n";
        let stat = parse(text).unwrap();
        assert_eq!((stat.group, stat.start, stat.is_zombie), (34, 5678, false));
    }

    #[test]
    fn this_process_is_among_those_that_live() {
        let own = stat(rustix::process::getpid()).unwrap();
        assert!(members().iter().any(|m| m.group == own.group && m.start == own.start));
    }
}
