//! Serves the runtime that started the plugin, or connects to a runtime.

use std::env;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use oci_hooks_files::error::chain;
use oci_hooks_files::spawn::take_inherited;
use oci_hooks_nri::{PluginIdentity, SocketWatch, WaitResult};
use tracing::{info, warn};

use crate::cli::PluginArgs;
use crate::error::PluginError;
use crate::plugin::HookPlugin;
use crate::serve::{ServeEnd, StopDescriptor, serve};

/// Variable with the descriptor of the connection to the runtime that started this program.
const SOCKET_VARIABLE: &str = "NRI_PLUGIN_SOCKET";
/// Variable with the name that the runtime assigned.
const NAME_VARIABLE: &str = "NRI_PLUGIN_NAME";
/// Variable with the index that the runtime assigned.
const INDEX_VARIABLE: &str = "NRI_PLUGIN_IDX";

/// Serves until a signal arrives or the runtime that started this program ends.
pub fn run(options: PluginArgs) -> Result<(), PluginError> {
    // Before any other file is opened, since the descriptor may have any number.
    let socket =
        env::var(SOCKET_VARIABLE).ok().map(|text| inherited_connection(&text)).transpose()?;
    let or_variable = |option: &Option<String>, variable, default: &str| {
        let given = option.clone().or_else(|| env::var(variable).ok());
        given.unwrap_or_else(|| default.to_owned())
    };
    let name = or_variable(&options.name, NAME_VARIABLE, "oci-hooks-nri");
    let index = or_variable(&options.idx, INDEX_VARIABLE, "10");
    let identity = PluginIdentity::new(&name, &index)?;
    let stop = StopDescriptor::new().map_err(PluginError::Wait)?;
    let mut plugin = HookPlugin::new(options.settings.clone());
    let result = match socket {
        Some(socket) => serve_runtime(&mut plugin, &identity, socket, &stop),
        None => {
            plugin.start(options.settings)?;
            connect(&mut plugin, &identity, &options.socket, &stop)
        }
    };
    plugin.end();
    result
}

/// Returns the connection that this program inherited.
fn inherited_connection(text: &str) -> Result<UnixStream, PluginError> {
    let invalid = |source| PluginError::Descriptor { text: text.to_owned(), source };
    let number = text.parse().map_err(|_| invalid(None))?;
    let descriptor = take_inherited(number).map_err(|error| invalid(Some(error)))?;
    Ok(UnixStream::from(descriptor))
}

/// Serves the runtime that started this program.
fn serve_runtime(
    plugin: &mut HookPlugin,
    identity: &PluginIdentity,
    socket: UnixStream,
    stop: &StopDescriptor,
) -> Result<(), PluginError> {
    let result = serve(plugin, identity, socket, stop);
    // The plugin's own failure made the runtime close the connection.
    plugin.take_failure().map_or(result.map(drop), Err)
}

/// Connects to the runtime, and reconnects after each end of the connection.
fn connect(
    plugin: &mut HookPlugin,
    identity: &PluginIdentity,
    path: &Path,
    stop: &StopDescriptor,
) -> Result<(), PluginError> {
    let mut backoff = Backoff::new();
    let mut last_problem = String::new();
    loop {
        let watch = SocketWatch::new(path).map_err(PluginError::Wait)?;
        let result = UnixStream::connect(path)
            .map_err(|source| PluginError::Socket { action: "connect to", source })
            .and_then(|socket| serve(plugin, identity, socket, stop));
        plugin.set_connected(false);
        match result {
            Ok(ServeEnd::Stopped) => return Ok(()),
            Ok(ServeEnd::Closed) => {
                info!(socket = %path.display(), "the runtime closed the connection");
                last_problem.clear();
                backoff.reset();
            }
            Err(error) => {
                let problem = chain(&plugin.take_failure().unwrap_or(error));
                if problem != last_problem {
                    warn!(socket = %path.display(), error = %problem, "not connected to a runtime: trying again");
                    last_problem = problem;
                }
            }
        }
        if wait(plugin, &watch, stop, backoff.next())? == WaitResult::Stopped {
            return Ok(());
        }
    }
}

/// Waits before the next attempt, and polls the plugin meanwhile.
fn wait(
    plugin: &mut HookPlugin,
    watch: &SocketWatch,
    stop: &StopDescriptor,
    time: Duration,
) -> Result<WaitResult, PluginError> {
    let deadline = Instant::now() + time;
    loop {
        plugin.poll();
        let until = plugin.due_time().map_or(deadline, |due| due.min(deadline));
        let left = until.saturating_duration_since(Instant::now());
        match watch.wait(stop, left).map_err(PluginError::Wait)? {
            WaitResult::TimedOut if Instant::now() < deadline => {}
            woken => return Ok(woken),
        }
    }
}

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Pauses that double each time.
struct Backoff(Duration);

impl Backoff {
    fn new() -> Self {
        Backoff(SHORTEST)
    }

    /// Returns the next pause.
    fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(LONGEST);
        now
    }

    /// Resets the next pause to the shortest one, after a success.
    fn reset(&mut self) {
        self.0 = SHORTEST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit() {
        let mut backoff = Backoff::new();
        let waits: Vec<_> = (0..9).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        backoff.reset();
        assert_eq!(backoff.next(), SHORTEST);
    }
}
