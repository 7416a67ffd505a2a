//! Progress of pulls: lines for the log of a step, a bar for a terminal.

use std::io::IsTerminal as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use oci_hooks_files::error::chain;
use oci_hooks_files::quantity::{format_count, format_size};
use oci_hooks_image::{ProgressEvent, PullProgress};

const PERIOD: Duration = Duration::from_secs(3);

/// Progress of all pulls together, because events of layers do not name the image.
#[derive(Debug)]
struct PullTotals {
    images: Vec<String>,
    layers: usize,
    layers_done: usize,
    bytes: u64,
    bytes_done: u64,
    /// Time of the last line.
    line_time: Instant,
}

impl PullTotals {
    fn line(&self) -> String {
        format!(
            "Pulling {}: {} of {} layers, {} of {}",
            self.images.join(", "),
            self.layers_done,
            self.layers,
            format_size(self.bytes_done),
            format_size(self.bytes)
        )
    }
}

/// Lines for the events of concurrent pulls: starts and retries at once, progress at most every few seconds.
#[derive(Debug, Default)]
pub struct ProgressLines {
    pulls: Mutex<Option<PullTotals>>,
}

impl ProgressLines {
    /// Records an event, and returns a line if one is due.
    pub fn take(&self, event: &ProgressEvent<'_>) -> Option<String> {
        let mut pulls = self.pulls.lock().expect("nothing panics while it holds the lock");
        match event {
            ProgressEvent::Retry { error, delay } => {
                let delay = delay.as_secs_f32();
                return Some(format!("{}; trying again in {delay:.1} s", chain(*error)));
            }
            ProgressEvent::Outdated { .. } => return event.outdated_warning(),
            ProgressEvent::Resolved { reference, layers, bytes, .. } => {
                let image = reference.familiar_name().to_string();
                let line = format!(
                    "Pulling {image}: {}, {}",
                    format_count(*layers, "layer"),
                    format_size(*bytes)
                );
                let line_time = Instant::now();
                let none = PullTotals {
                    images: Vec::new(),
                    layers: 0,
                    layers_done: 0,
                    bytes: 0,
                    bytes_done: 0,
                    line_time,
                };
                let all = pulls.get_or_insert(none);
                all.images.push(image);
                all.layers += layers;
                all.bytes += bytes;
                all.line_time = line_time;
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
        if pull.line_time.elapsed() < PERIOD {
            return None;
        }
        pull.line_time = Instant::now();
        Some(pull.line())
    }
}

/// Progress of a pull, shown on standard error.
pub struct PullBar {
    /// None if standard error is not a terminal.
    bar: Option<ProgressBar>,
    lines: ProgressLines,
}

impl PullBar {
    /// Returns a progress bar, or lines if standard error is not a terminal.
    pub fn on_stderr() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template(
                "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {msg}",
            );
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            bar.with_style(style.expect("the template is right"))
        });
        PullBar { bar, lines: ProgressLines::default() }
    }

    /// Removes the bar from the terminal.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl PullProgress for PullBar {
    fn event(&self, event: ProgressEvent<'_>) {
        let Some(bar) = &self.bar else {
            if let Some(line) = self.lines.take(&event) {
                // If standard error is closed, progress cannot be shown.
                let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{line}\n"));
            }
            return;
        };
        match event {
            ProgressEvent::Resolved { reference, layers, bytes, .. } => {
                bar.set_length(bytes);
                let layers = format_count(layers, "layer");
                bar.set_message(format!("{}, {layers}", reference.familiar_name()));
            }
            ProgressEvent::LayerCached { bytes, .. } | ProgressEvent::LayerBytes { bytes, .. } => {
                bar.inc(bytes);
            }
            ProgressEvent::Retry { error, .. } => bar.println(chain(error)),
            ProgressEvent::Outdated { .. } => {
                bar.println(event.outdated_warning().unwrap_or_default());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use oci_hooks_image::{Digest, ImageReference};

    use super::*;

    #[test]
    fn pull_reports_its_start_at_once_and_progress_every_few_seconds() {
        let lines = ProgressLines::default();
        let line_time = || lines.pulls.lock().unwrap().as_ref().unwrap().line_time;
        let set_time =
            |time: Instant| lines.pulls.lock().unwrap().as_mut().unwrap().line_time = time;
        // A line of the future: a busy machine may stop the test for longer than the period.
        let future = Instant::now() + PERIOD * 1000;
        let reference: ImageReference = "node:22".parse().unwrap();
        let digest = Digest::of(b"");
        let (reference, digest) = (&reference, &digest);
        let begin = ProgressEvent::Resolved { reference, digest, layers: 2, bytes: 149_000_000 };
        assert_eq!(lines.take(&begin).unwrap(), "Pulling node:22: 2 layers, 149 MB");
        let event = ProgressEvent::LayerCached { digest, bytes: 49_000_000 };
        set_time(future);
        assert_eq!(lines.take(&event), None);
        let past = Instant::now() - PERIOD;
        set_time(past);
        let event = ProgressEvent::LayerBytes { digest, bytes: 1_000_000 };
        let line = lines.take(&event).unwrap();
        assert_eq!(line, "Pulling node:22: 1 of 2 layers, 50.0 MB of 149 MB");
        assert!(line_time() >= past + PERIOD);
        set_time(future);
        assert_eq!(lines.take(&event), None);

        let redis: ImageReference = "redis:7".parse().unwrap();
        let begin =
            ProgressEvent::Resolved { reference: &redis, digest, layers: 1, bytes: 1_000_000 };
        assert_eq!(lines.take(&begin).unwrap(), "Pulling redis:7: 1 layer, 1.00 MB");
        set_time(future);
        assert_eq!(lines.take(&ProgressEvent::LayerDone { digest }), None);
        set_time(past);
        assert_eq!(
            lines.take(&ProgressEvent::Waiting).unwrap(),
            "Pulling node:22, redis:7: 2 of 3 layers, 51.0 MB of 150 MB"
        );
    }
}
