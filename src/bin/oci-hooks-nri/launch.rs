//! Started by the runtime, or connecting to it.

use std::env;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use oci_hooks::nri::{Identity, SocketWatch, Woken};
use oci_hooks::sys::error::chain;
use oci_hooks::sys::spawn::inherited;
use tracing::{info, warn};

use crate::cli::Options;
use crate::error::Error;
use crate::plugin::Plugin;
use crate::serve::{End, Stop, serve};
use crate::settings::Settings;

/// The descriptor of the connection to the runtime that started this program.
const SOCKET_VARIABLE: &str = "NRI_PLUGIN_SOCKET";
/// The name that the runtime gave.
const NAME_VARIABLE: &str = "NRI_PLUGIN_NAME";
/// The index that the runtime gave.
const INDEX_VARIABLE: &str = "NRI_PLUGIN_IDX";

/// Serves until a signal, or the runtime that started this program, ends it.
pub fn run(options: Options) -> Result<(), Error> {
    // First of all, as the descriptor's number may be any.
    let socket = env::var(SOCKET_VARIABLE).ok().map(|text| given(&text)).transpose()?;
    let or_variable = |option: &Option<String>, variable, default: &str| {
        let given = option.clone().or_else(|| env::var(variable).ok());
        given.unwrap_or_else(|| default.to_owned())
    };
    let name = or_variable(&options.name, NAME_VARIABLE, "oci-hooks-nri");
    let index = or_variable(&options.idx, INDEX_VARIABLE, "10");
    let identity = Identity::new(&name, &index)?;
    let stop = Stop::new().map_err(Error::Wait)?;
    let settings = Settings::of(&options);
    let mut plugin = Plugin::new(settings.clone());
    let result = match socket {
        Some(socket) => started(&mut plugin, &identity, socket, &stop),
        None => {
            plugin.start(settings)?;
            connect(&mut plugin, &identity, &options.socket, &stop)
        }
    };
    plugin.end();
    result
}

/// Returns the connection that this program was started with.
fn given(text: &str) -> Result<UnixStream, Error> {
    let invalid = |source| Error::Descriptor { text: text.to_owned(), source };
    let number = text.parse().map_err(|_| invalid(None))?;
    let descriptor = inherited(number).map_err(|error| invalid(Some(error)))?;
    Ok(UnixStream::from(descriptor))
}

/// Serves the runtime that started this program.
fn started(
    plugin: &mut Plugin,
    identity: &Identity,
    socket: UnixStream,
    stop: &Stop,
) -> Result<(), Error> {
    let result = serve(plugin, identity, socket, stop);
    // That is why the runtime closed the connection.
    plugin.take_failure().map_or(result.map(drop), Err)
}

/// Connects to the runtime, again and again.
fn connect(
    plugin: &mut Plugin,
    identity: &Identity,
    path: &Path,
    stop: &Stop,
) -> Result<(), Error> {
    let mut backoff = Backoff::new();
    let mut last_problem = String::new();
    loop {
        let watch = SocketWatch::new(path).map_err(Error::Wait)?;
        let result = UnixStream::connect(path)
            .map_err(|source| Error::Socket { action: "connect to", source })
            .and_then(|socket| serve(plugin, identity, socket, stop));
        plugin.set_connected(false);
        match result {
            Ok(End::Stopped) => return Ok(()),
            Ok(End::Closed) => {
                info!(socket = %path.display(), "the runtime closed the connection");
                last_problem.clear();
                backoff.reset();
            }
            Err(error) => {
                let problem = chain(&plugin.take_failure().unwrap_or(error));
                if problem != last_problem {
                    warn!(socket = %path.display(), error = %problem, "no runtime: wait for it");
                    last_problem = problem;
                }
            }
        }
        if wait(plugin, &watch, stop, backoff.next())? == Woken::Stopped {
            return Ok(());
        }
    }
}

/// Waits before the next try, and does meanwhile what the plugin has to do.
fn wait(
    plugin: &mut Plugin,
    watch: &SocketWatch,
    stop: &Stop,
    time: Duration,
) -> Result<Woken, Error> {
    let deadline = Instant::now() + time;
    loop {
        plugin.poll();
        let until = plugin.due().map_or(deadline, |due| due.min(deadline));
        let left = until.saturating_duration_since(Instant::now());
        match watch.wait(stop, left).map_err(Error::Wait)? {
            Woken::TimedOut if Instant::now() < deadline => {}
            woken => return Ok(woken),
        }
    }
}

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Waits that double from one to the next.
struct Backoff(Duration);

impl Backoff {
    fn new() -> Self {
        Backoff(SHORTEST)
    }

    /// Returns the time to wait now.
    fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(LONGEST);
        now
    }

    /// Starts over, since something worked.
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
