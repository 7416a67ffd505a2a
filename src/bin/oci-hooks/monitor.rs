//! `oci-hooks monitor`: prints changes of hook files, or of CDI specifications, as they happen.

mod command;
mod event;
mod followed;
mod service;

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use clap::Args;
use command::{ChangeBatch, ExecRunner};
use event::EventJson;
use followed::{FileMonitor, HookMonitor};
use oci_hooks::hooks::monitor::{DeviceMonitor, Monitor, MonitorOptions};
use oci_hooks_cli::exit::CliExit;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use service::{ServiceSignals, SystemdNotify};

use crate::context::CommandContext;
use crate::devices::DeviceArgs;
use crate::error::HooksCommandError;
use crate::global::OutputFormat;

/// Watch hook directories, or CDI specifications, and print changes
#[derive(Debug, Args)]
#[command(after_help = "\
Each event is one line of JSON; the first one is a snapshot. --format human is for people.

  {\"event\":\"snapshot\",\"time\":T,\"dirs\":[{\"path\":P,\"exists\":B}],\"hooks\":[H],\"problems\":[E]}
  {\"event\":\"added\",\"time\":T,\"name\":N,\"path\":P, and the content of the hook file}
  {\"event\":\"changed\", the same}
  {\"event\":\"restored\", the same}       it was masked or broken and is in force again
  {\"event\":\"removed\",\"time\":T,\"name\":N,\"path\":P}
  {\"event\":\"readable\", the same}       a directory, after it was broken
  {\"event\":\"masked\",\"time\":T,\"name\":N,\"path\":P,\"by\":P}
  {\"event\":\"broken\",\"time\":T,\"name\":N,\"path\":P,\"in_force\":B,\"problem\":E}
  {\"event\":\"altered\",\"time\":T,\"name\":N,\"path\":P,\"uid\":U,\"mode\":M,\"problem\":E}

altered: the owner, mode or writers of a hook file, of its program, or of a directory or link on the
way to them changed, or the program, or where a link leads. M is octal. E is present if another user
can change the path.

H is a hook as `oci-hooks list --format json` prints it, E an error as --error-format json does.
The consumer of --as decides about a valid file that becomes broken: podman, buildah, CRI-O and
hook-injector drop its hook at once (in_force is false); nri keeps its previous content in force
(in_force is true) until the file is valid again or removed.

With --cdi, the snapshot has \"devices\":[D] instead of hooks, N is the name of a device, and the
event has the content of D, a device as `oci-hooks list --cdi --format json` prints it. A device
that several files of one directory define is broken; so is a specification or directory that
cannot be used, with its file name as N, until it is readable.

Signals: TERM and INT end it, with exit status 0; HUP reads everything again and prints a snapshot.
It notifies systemd when it is ready, reloading or stopping when NOTIFY_SOCKET is set.

Examples:
  oci-hooks monitor | jq 'select(.event == \"broken\")'
  oci-hooks monitor --format human --hooks-dir /etc/containers/oci/hooks.d
  oci-hooks monitor --exec 'oci-hooks lint || logger -t hooks \"$OCI_HOOKS_EVENTS\"' >/dev/null
  oci-hooks monitor --cdi")]
pub struct MonitorArgs {
    /// Watch the CDI specifications instead of hook files
    #[arg(long)]
    cdi: bool,

    #[command(flatten)]
    devices: DeviceArgs,

    /// Run CMD with /bin/sh after changes, with their events on standard input, their kinds in
    /// OCI_HOOKS_EVENTS and their number in OCI_HOOKS_CHANGES. One CMD runs at a time; changes
    /// meanwhile go to the next one
    #[arg(long, value_name = "CMD")]
    exec: Option<OsString>,

    /// Kill CMD and its child processes after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    exec_timeout: u64,

    /// Read the directories after this many milliseconds without changes
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    coalesce: u64,
}

pub fn run(args: &MonitorArgs, context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
    // From here on signals are not lost: a signal during the load ends the program cleanly.
    let signals = ServiceSignals::new().map_err(HooksCommandError::Wait)?;
    let notify = SystemdNotify::from_env();
    let files = args.follow(context)?;
    let timeout = Duration::from_secs(args.exec_timeout);
    let runner = args.exec.clone().map(|command| ExecRunner::new(command, timeout));
    let mut session = MonitorSession { context, files, signals, notify, runner };
    let result = session.follow();
    session.notify.send("STOPPING=1\nSTATUS=Stopping");
    if let Some(runner) = &mut session.runner {
        runner.wait(session.context);
    }
    result.map(|()| CliExit::Done)
}

impl MonitorArgs {
    /// Starts to watch the files.
    fn follow(&self, context: &CommandContext) -> Result<Box<dyn FileMonitor>, HooksCommandError> {
        let coalesce = Duration::from_millis(self.coalesce);
        if self.cdi {
            return Ok(Box::new(DeviceMonitor::new(self.devices.dirs(), coalesce)?));
        }
        let directories = context.directories()?;
        directories.report(context);
        let load = context.load_options(&directories);
        let monitor = Monitor::new(MonitorOptions { load, coalesce, ..Default::default() })?;
        Ok(Box::new(HookMonitor::new(monitor)))
    }
}

/// The state of the event loop.
struct MonitorSession<'c> {
    context: &'c mut CommandContext,
    files: Box<dyn FileMonitor>,
    signals: ServiceSignals,
    notify: SystemdNotify,
    runner: Option<ExecRunner>,
}

/// The events of one wait; several may be set.
struct SessionEvents {
    stop: bool,
    rescan: bool,
    command_ended: bool,
    stdout_closed: bool,
}

impl MonitorSession<'_> {
    /// Prints changes until a signal arrives or the reader closes standard output.
    fn follow(&mut self) -> Result<(), HooksCommandError> {
        self.print_snapshot()?;
        self.notify.send(&format!("READY=1\n{}", self.files.status()));
        loop {
            let ready = self.wait()?;
            if ready.stop || ready.stdout_closed {
                return Ok(());
            }
            if ready.command_ended
                && let Some(runner) = &mut self.runner
            {
                runner.handle_end(self.context);
            }
            if ready.rescan {
                self.signals.take_rescan().map_err(HooksCommandError::Wait)?;
                self.notify.send_reloading();
            }
            let events = self.files.changes(ready.rescan)?;
            let is_changed = !events.is_empty();
            if is_changed {
                report_changes(&events, self.context, self.runner.as_mut())?;
            }
            if ready.rescan {
                self.print_snapshot()?;
                self.notify.send(&format!("READY=1\n{}", self.files.status()));
            } else if is_changed {
                self.notify.send(&self.files.status());
            }
        }
    }

    /// Waits for the next event.
    fn wait(&self) -> Result<SessionEvents, HooksCommandError> {
        let left = self.files.due_time().map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let stdout = io::stdout();
        let ended = self.runner.as_ref().and_then(ExecRunner::ended_fd);
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.files.fd(), PollFlags::IN),
            PollFd::new(&self.signals.stop, PollFlags::IN),
            PollFd::new(&self.signals.rescan, PollFlags::IN),
            // Requests no event, so poll(2) reports only that the reader has closed standard output.
            PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::empty()),
        ];
        fds.extend(ended.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(HooksCommandError::Wait(errno.into())),
        }
        let is_ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        Ok(SessionEvents {
            stop: is_ready(1),
            rescan: is_ready(2),
            stdout_closed: is_ready(3),
            command_ended: is_ready(4),
        })
    }

    fn print_snapshot(&mut self) -> Result<(), HooksCommandError> {
        let snapshot = self.files.snapshot();
        if self.context.format == Some(OutputFormat::Human) {
            for line in snapshot.format_human(self.context.paint) {
                self.context.line(line)?;
            }
        } else {
            self.context.line(event::to_line(&snapshot))?;
        }
        self.context.flush()
    }
}

/// Prints changes, and passes them to the command.
fn report_changes(
    events: &[EventJson<'_>],
    context: &mut CommandContext,
    runner: Option<&mut ExecRunner>,
) -> Result<(), HooksCommandError> {
    for event in events {
        if context.format == Some(OutputFormat::Human) {
            context.line(event.format_human(context.paint))?;
        } else {
            context.line(event::to_line(event))?;
        }
    }
    context.flush()?;
    if let Some(runner) = runner {
        let mut batch = ChangeBatch::default();
        for event in events {
            batch.add(event.event, &event::to_line(event));
        }
        runner.run(batch, context);
    }
    Ok(())
}
