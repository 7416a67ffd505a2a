//! `oci-hooks monitor`: what changes in the hook directories, as it changes.

mod command;
mod event;
mod service;

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use clap::Args;
use command::{Batch, Runner};
use event::SnapshotJson;
use jiff::Timestamp;
use oci_hooks::hooks::Loaded;
use oci_hooks::hooks::monitor::{Change, Monitor, MonitorOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use service::{Notify, Signals};

use crate::Exit;
use crate::context::Context;
use crate::error::Error;
use crate::global::OutputFormat;

/// Follow the hook directories and print what changes
#[derive(Debug, Args)]
#[command(after_help = "\
Each event is one line of JSON; the first one is a snapshot. --format human is for people.

  {\"event\":\"snapshot\",\"time\":T,\"dirs\":[{\"path\":P,\"exists\":B}],\"hooks\":[H],\"problems\":[E]}
  {\"event\":\"added\",\"time\":T,\"name\":N,\"path\":P, and what the hook file says}
  {\"event\":\"changed\", the same}
  {\"event\":\"restored\", the same}       it was masked or broken and is in force again
  {\"event\":\"removed\",\"time\":T,\"name\":N,\"path\":P}
  {\"event\":\"masked\",\"time\":T,\"name\":N,\"path\":P,\"by\":P}
  {\"event\":\"broken\",\"time\":T,\"name\":N,\"path\":P,\"in_force\":B,\"problem\":E}

H is a hook as `oci-hooks list --format json` prints it, E an error as --error-format json does. A
file that was good and is broken now stays in force as it was (in_force is true) until it is good
again or removed.

Signals: TERM and INT end it, with exit status 0; HUP reads everything again and prints a snapshot.
It tells systemd that it is ready, reloading or stopping when NOTIFY_SOCKET is set.

Examples:
  oci-hooks monitor | jq 'select(.event == \"broken\")'
  oci-hooks monitor --format human --hooks-dir /etc/containers/oci/hooks.d
  oci-hooks monitor --exec 'oci-hooks lint || logger -t hooks \"$OCI_HOOKS_EVENTS\"' >/dev/null")]
pub struct MonitorArgs {
    /// Run CMD with /bin/sh after changes; it reads their events from standard input, their kinds
    /// are in OCI_HOOKS_EVENTS, their number is in OCI_HOOKS_CHANGES. One runs at a time; what
    /// changes meanwhile goes to the next one
    #[arg(long, value_name = "CMD")]
    exec: Option<OsString>,

    /// Kill CMD, and what it started, after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    exec_timeout: u64,

    /// Read the directories after they were quiet for this many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    coalesce: u64,
}

pub fn run(args: &MonitorArgs, context: &mut Context) -> Result<Exit, Error> {
    // From here on signals are not lost: one that comes while loading ends it cleanly.
    let signals = Signals::new().map_err(Error::Wait)?;
    let notify = Notify::from_env();
    let directories = context.directories()?;
    directories.report(context);
    let monitor = Monitor::new(MonitorOptions {
        load: context.load_options(&directories),
        coalesce: Duration::from_millis(args.coalesce),
        ..Default::default()
    })?;
    let timeout = Duration::from_secs(args.exec_timeout);
    let runner = args.exec.clone().map(|command| Runner::new(command, timeout));
    let mut session = Session { context, monitor, signals, notify, runner };
    let result = session.follow();
    session.notify.send("STOPPING=1\nSTATUS=Stopping");
    if let Some(runner) = &mut session.runner {
        runner.wait(session.context);
    }
    result.map(|()| Exit::Yes)
}

/// Everything that the loop deals with.
struct Session<'c> {
    context: &'c mut Context,
    monitor: Monitor,
    signals: Signals,
    notify: Notify,
    runner: Option<Runner>,
}

/// What there is to do.
struct Ready {
    stop: bool,
    rescan: bool,
    command_ended: bool,
    nobody_reads: bool,
}

impl Session<'_> {
    /// Prints what changes until a signal or the reader ends it.
    fn follow(&mut self) -> Result<(), Error> {
        self.print_snapshot()?;
        self.notify.send(&format!("READY=1\n{}", self.status()));
        loop {
            let ready = self.wait()?;
            if ready.stop || ready.nobody_reads {
                return Ok(());
            }
            if ready.command_ended
                && let Some(runner) = &mut self.runner
            {
                runner.ended(self.context);
            }
            let changes = if ready.rescan {
                self.signals.take_rescan().map_err(Error::Wait)?;
                self.notify.send_reloading();
                self.monitor.rescan()?
            } else {
                self.monitor.poll()?
            };
            if !changes.is_empty() {
                self.tell(&changes)?;
            }
            if ready.rescan {
                self.print_snapshot()?;
                self.notify.send(&format!("READY=1\n{}", self.status()));
            } else if !changes.is_empty() {
                self.notify.send(&self.status());
            }
        }
    }

    /// Waits until there is something to do.
    fn wait(&self) -> Result<Ready, Error> {
        let left = self.monitor.due().map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let stdout = io::stdout();
        let ended = self.runner.as_ref().and_then(Runner::ended_fd);
        let mut fds = vec![
            PollFd::new(&self.monitor, PollFlags::IN),
            PollFd::new(&self.signals.stop, PollFlags::IN),
            PollFd::new(&self.signals.rescan, PollFlags::IN),
            // Asks for nothing, and so is told only when the reader has gone.
            PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::empty()),
        ];
        fds.extend(ended.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::Wait(errno.into())),
        }
        let is_ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        Ok(Ready {
            stop: is_ready(1),
            rescan: is_ready(2),
            nobody_reads: is_ready(3),
            command_ended: is_ready(4),
        })
    }

    /// Prints changes, and hands them to the command.
    fn tell(&mut self, changes: &[Change]) -> Result<(), Error> {
        let loaded = self.monitor.snapshot();
        let events = event::of_changes(changes, &loaded, Timestamp::now());
        for event in &events {
            if self.context.format == Some(OutputFormat::Human) {
                self.context.line(event.human(self.context.paint))?;
            } else {
                self.context.line(event::to_line(event))?;
            }
        }
        self.context.flush()?;
        if let Some(runner) = &mut self.runner {
            let mut batch = Batch::default();
            for event in &events {
                batch.add(event.event, &event::to_line(event));
            }
            runner.run(batch, self.context);
        }
        Ok(())
    }

    fn print_snapshot(&mut self) -> Result<(), Error> {
        let loaded = self.monitor.snapshot();
        let snapshot = SnapshotJson::new(&loaded, Timestamp::now());
        if self.context.format == Some(OutputFormat::Human) {
            for line in snapshot.human(self.context.paint) {
                self.context.line(line)?;
            }
        } else {
            self.context.line(event::to_line(&snapshot))?;
        }
        self.context.flush()
    }

    /// Returns what `systemctl status` shows.
    fn status(&self) -> String {
        let Loaded { hooks, problems, .. } = &*self.monitor.snapshot();
        format!("STATUS=Hooks: {}, problems: {}", hooks.len(), problems.len())
    }
}
