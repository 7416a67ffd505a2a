//! The progress of a pull: lines for the log of a step, a bar for a terminal.

use std::io::IsTerminal as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::image::{Progress, ProgressEvent};
use crate::sys::error::chain;
use crate::sys::quantity::{counted, human};

/// How long a pull may say nothing.
const PERIOD: Duration = Duration::from_secs(3);

/// What is known of all pulls together: which of them a layer is of is not said.
#[derive(Debug)]
struct Pulls {
    images: Vec<String>,
    layers: usize,
    layers_done: usize,
    bytes: u64,
    bytes_done: u64,
    /// When something was said last.
    said: Instant,
}

impl Pulls {
    fn line(&self) -> String {
        format!(
            "Pulling {}: {} of {} layers, {} of {}",
            self.images.join(", "),
            self.layers_done,
            self.layers,
            human(self.bytes_done),
            human(self.bytes)
        )
    }
}

/// Turns what happens into lines, one every few seconds at most. Several pulls may go on at once.
#[derive(Debug, Default)]
pub struct Lines {
    pulls: Mutex<Option<Pulls>>,
}

impl Lines {
    /// Takes note of an event, and returns what is to be said now.
    pub fn take(&self, event: &ProgressEvent<'_>) -> Option<String> {
        let mut pulls = self.pulls.lock().expect("nothing panics while it holds the lock");
        match event {
            ProgressEvent::Retry { error, delay } => {
                let delay = delay.as_secs_f32();
                return Some(format!("{}; trying again in {delay:.1} s", chain(*error)));
            }
            ProgressEvent::Outdated { .. } => return event.outdated(),
            ProgressEvent::Resolved { reference, layers, bytes, .. } => {
                let image = reference.familiar().to_string();
                let line =
                    format!("Pulling {image}: {}, {}", counted(*layers, "layer"), human(*bytes));
                let said = Instant::now();
                let none = Pulls {
                    images: Vec::new(),
                    layers: 0,
                    layers_done: 0,
                    bytes: 0,
                    bytes_done: 0,
                    said,
                };
                let all = pulls.get_or_insert(none);
                all.images.push(image);
                all.layers += layers;
                all.bytes += bytes;
                all.said = said;
                return Some(line);
            }
            _ => {}
        }
        let pull = pulls.as_mut()?;
        match event {
            ProgressEvent::LayerBytes { bytes, .. } => pull.bytes_done += bytes,
            ProgressEvent::LayerCached { bytes, .. } => {
                pull.bytes_done += bytes;
                pull.layers_done += 1;
            }
            ProgressEvent::LayerDone { .. } => pull.layers_done += 1,
            _ => {}
        }
        if pull.said.elapsed() < PERIOD {
            return None;
        }
        pull.said = Instant::now();
        Some(pull.line())
    }
}

/// Shows a pull to whoever waits for it, on standard error.
pub struct Bar {
    /// None if there is no terminal.
    bar: Option<ProgressBar>,
    lines: Lines,
}

impl Bar {
    /// Returns a bar on standard error, or lines there if it is no terminal.
    pub fn on_stderr() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template(
                "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {msg}",
            );
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            bar.with_style(style.expect("the template is right"))
        });
        Bar { bar, lines: Lines::default() }
    }

    /// Removes the bar from the terminal.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Bar {
    fn event(&self, event: ProgressEvent<'_>) {
        let Some(bar) = &self.bar else {
            if let Some(line) = self.lines.take(&event) {
                // If standard error is gone there is nobody to tell.
                let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{line}\n"));
            }
            return;
        };
        match event {
            ProgressEvent::Resolved { reference, layers, bytes, .. } => {
                bar.set_length(bytes);
                let layers = counted(layers, "layer");
                bar.set_message(format!("{}, {layers}", reference.familiar()));
            }
            ProgressEvent::LayerCached { bytes, .. } | ProgressEvent::LayerBytes { bytes, .. } => {
                bar.inc(bytes);
            }
            ProgressEvent::Retry { error, .. } => bar.println(chain(error)),
            ProgressEvent::Outdated { .. } => bar.println(event.outdated().unwrap_or_default()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::image::{Digest, Reference};

    use super::*;

    #[test]
    fn a_pull_says_at_once_that_it_begins_and_then_only_every_few_seconds() {
        let lines = Lines::default();
        let reference: Reference = "node:22".parse().unwrap();
        let digest = Digest::of(b"");
        let (reference, digest) = (&reference, &digest);
        let begin = ProgressEvent::Resolved { reference, digest, layers: 2, bytes: 149_000_000 };
        assert_eq!(lines.take(&begin).unwrap(), "Pulling node:22: 2 layers, 149 MB");
        let event = ProgressEvent::LayerCached { digest, bytes: 49_000_000 };
        assert_eq!(lines.take(&event), None);
        lines.pulls.lock().unwrap().as_mut().unwrap().said -= PERIOD;
        let event = ProgressEvent::LayerBytes { digest, bytes: 1_000_000 };
        let line = lines.take(&event).unwrap();
        assert_eq!(line, "Pulling node:22: 1 of 2 layers, 50.0 MB of 149 MB");
        assert_eq!(lines.take(&event), None);

        let redis: Reference = "redis:7".parse().unwrap();
        let begin =
            ProgressEvent::Resolved { reference: &redis, digest, layers: 1, bytes: 1_000_000 };
        assert_eq!(lines.take(&begin).unwrap(), "Pulling redis:7: 1 layer, 1.00 MB");
        assert_eq!(lines.take(&ProgressEvent::LayerDone { digest }), None);
        lines.pulls.lock().unwrap().as_mut().unwrap().said -= PERIOD;
        assert_eq!(
            lines.take(&ProgressEvent::Waiting).unwrap(),
            "Pulling node:22, redis:7: 2 of 3 layers, 51.0 MB of 150 MB"
        );
    }
}
