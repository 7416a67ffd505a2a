//! Process groups of commands, recorded to kill what they leave behind.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// File in a job's directory with its process groups: the next server kills them after a crash.
const RECORD: &str = "groups";

/// Poll interval for the exit of processes that were signalled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The process groups of a job.
#[derive(Debug)]
pub(super) struct Groups {
    record: File,
    /// Groups whose leader has exited, but not all members.
    orphaned: Vec<Pid>,
}

impl Groups {
    pub(super) fn new(scratch: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let record = options.append(true).create(true).mode(0o600).open(scratch.join(RECORD))?;
        Ok(Groups { record, orphaned: Vec::new() })
    }

    /// Records a new group.
    pub(super) fn record(&mut self, leader: Pid) -> io::Result<()> {
        let start = stat(leader).map_or(0, |stat| stat.start);
        // One call, so that a line is written completely or not at all.
        self.record.write_all(format!("{} {start}\n", leader.as_raw_nonzero()).as_bytes())
    }

    /// Keeps a group whose leader has been reaped, if it has other members.
    pub(super) fn leave(&mut self, group: Pid) {
        if kill_group(group, None) {
            self.orphaned.push(group);
        }
    }

    /// Returns whether no orphaned group is left.
    pub(super) fn is_empty(&self) -> bool {
        self.orphaned.is_empty()
    }

    /// Sends a signal to all orphaned groups, and drops those that are gone.
    pub(super) fn signal(&mut self, signal: Signal) {
        self.orphaned.retain(|group| is_ours(*group) && kill_group(*group, Some(signal)));
    }

    /// Drops groups without living members.
    pub(super) fn prune(&mut self) {
        let members = members();
        self.orphaned.retain(|group| {
            members.iter().any(|member| member.group == group.as_raw_nonzero().get())
        });
    }
}

/// The kernel reuses a group id only when the group is gone, and then for a leader with that pid.
fn is_ours(group: Pid) -> bool {
    stat(group).is_none()
}

/// Sends a signal, or none to probe. Returns whether the group has members.
fn kill_group(group: Pid, signal: Option<Signal>) -> bool {
    match signal {
        Some(signal) => kill_process_group(group, signal).is_ok(),
        None => rustix::process::test_kill_process_group(group).is_ok(),
    }
}

/// Kills the process groups that are recorded in the directory of a job whose server crashed, unless
/// their ids were reused. The caller must make sure that the record is of this boot.
pub fn kill_recorded(scratch: &Path) {
    let Ok(record) = fs::read_to_string(scratch.join(RECORD)) else { return };
    let groups: Vec<(i32, u64)> = record
        .lines()
        .filter_map(|line| {
            let (group, start) = line.split_once(' ')?;
            Some((group.parse().ok()?, start.parse().ok()?))
        })
        .collect();
    // Twice: a member may have been forking.
    for _ in 0..2 {
        let members = members();
        for (group, start) in &groups {
            let Some(pid) = Pid::from_raw(*group) else { continue };
            // An existing leader is the recorded one, or the id was reused.
            let is_same = stat(pid).is_none_or(|leader| leader.start == *start);
            // Members start after their leader.
            let is_alive = members.iter().any(|m| m.group == *group && m.start >= *start);
            if is_same && is_alive {
                kill_group(pid, Some(Signal::KILL));
            }
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Polls `done` until it returns true or the deadline is over.
pub(super) fn wait(deadline: Instant, mut done: impl FnMut(Duration) -> bool) {
    while !done(POLL_INTERVAL.min(deadline.saturating_duration_since(Instant::now()))) {
        if Instant::now() >= deadline {
            return;
        }
    }
}

/// Fields of `/proc/PID/stat`.
struct Stat {
    group: i32,
    /// Start time in clock ticks since boot.
    start: u64,
    is_zombie: bool,
}

fn stat(pid: Pid) -> Option<Stat> {
    let mut file = File::open(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // Larger than the file, so that one call reads it.
    let mut buffer = [0; 1024];
    let length = file.read(&mut buffer).ok()?;
    parse(&String::from_utf8_lossy(&buffer[..length]))
}

/// See proc_pid_stat(5). The name is in parentheses and may contain any character.
fn parse(stat: &str) -> Option<Stat> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let is_zombie = matches!(fields.next()?, "Z" | "X");
    let group = fields.nth(1)?.parse().ok()?;
    let start = fields.nth(16)?.parse().ok()?;
    Some(Stat { group, start, is_zombie })
}

/// Returns all processes that are not zombies.
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
