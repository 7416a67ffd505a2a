//! Metrics of the plugin in the text format of Prometheus.

use std::fmt::Write as _;
use std::time::Duration;

use oci_hooks::hooks::{HookStage, LoadedHooks, OciStage};

use super::decide::Decision;

/// Upper limits of the histogram's buckets, in seconds.
const BUCKETS: [f64; 9] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.1, 1.0];

/// Counters and gauges since the plugin started.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    injected: u64,
    unmatched: u64,
    rejected: u64,
    matched_files: u64,
    stages: [u64; OciStage::ALL.len()],
    buckets: [u64; BUCKETS.len()],
    sum: Duration,
    hooks: usize,
    broken_in_force: usize,
    broken: usize,
    without_hooks: usize,
    is_connected: bool,
}

/// Decision about a container that is about to be created.
#[derive(Clone, Copy, Debug)]
pub enum ContainerOutcome<'a> {
    Decided(&'a Decision),
    Rejected,
}

impl Metrics {
    /// Counts a container, and the time for deciding its hooks.
    pub fn count(&mut self, outcome: ContainerOutcome<'_>, took: Duration) {
        match outcome {
            ContainerOutcome::Rejected => self.rejected += 1,
            ContainerOutcome::Decided(decision) if decision.matched.is_empty() => {
                self.unmatched += 1;
            }
            ContainerOutcome::Decided(decision) => {
                self.injected += 1;
                self.matched_files += decision.matched.len() as u64;
                for stage in decision.matched.iter().flat_map(|matched| &matched.stages) {
                    let at = OciStage::ALL.iter().position(|s| HookStage::Oci(*s) == *stage);
                    if let Some(at) = at {
                        self.stages[at] += 1;
                    }
                }
            }
        }
        self.sum += took;
        let seconds = took.as_secs_f64();
        // A longer time counts only in the last bucket, which has no limit.
        if let Some(at) = BUCKETS.iter().position(|limit| seconds <= *limit) {
            self.buckets[at] += 1;
        }
    }

    /// Sets the numbers of hooks in force and of broken hook files.
    pub fn set_loaded(&mut self, loaded: &LoadedHooks) {
        self.hooks = loaded.hooks.len();
        let in_force = loaded
            .problems
            .iter()
            .filter(|problem| loaded.hooks.iter().any(|file| file.path == problem.path));
        self.broken_in_force = in_force.count();
        self.broken = loaded.problems.len() - self.broken_in_force;
    }

    /// Sets the number of existing containers that lack a hook that matches them.
    pub fn set_without_hooks(&mut self, containers: usize) {
        self.without_hooks = containers;
    }

    /// Sets whether the plugin is registered with a runtime.
    pub fn set_connected(&mut self, is_connected: bool) {
        self.is_connected = is_connected;
    }

    /// Returns the metrics as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let results = [
            ("injected", self.injected),
            ("unmatched", self.unmatched),
            ("rejected", self.rejected),
        ];
        let counts = results.map(|(name, count)| (format!("{{result=\"{name}\"}}"), count));
        family(&mut text, "containers_total", "counter", "Containers by result.", &counts);
        let matched = [(String::new(), self.matched_files)];
        let help = "Hook files that matched a container.";
        family(&mut text, "matched_hooks_total", "counter", help, &matched);
        let stages = OciStage::ALL.iter().zip(self.stages);
        let stages: Vec<_> =
            stages.map(|(stage, count)| (format!("{{stage=\"{stage}\"}}"), count)).collect();
        let help = "Hooks injected into containers, by stage.";
        family(&mut text, "injected_hooks_total", "counter", help, &stages);
        self.write_gauges(&mut text);
        self.histogram(&mut text);
        text
    }

    fn write_gauges(&self, text: &mut String) {
        let one = |value: usize| [(String::new(), value as u64)];
        family(text, "hooks", "gauge", "Hook files in force.", &one(self.hooks));
        let broken = [
            ("{in_force=\"false\"}".to_owned(), self.broken as u64),
            ("{in_force=\"true\"}".to_owned(), self.broken_in_force as u64),
        ];
        let help = "Invalid hook files. in_force=true: the last valid version is still used.";
        family(text, "broken_files", "gauge", help, &broken);
        let help =
            "Containers that existed when the plugin registered and lack hooks that match them.";
        family(text, "containers_without_hooks", "gauge", help, &one(self.without_hooks));
        let help = "Whether the plugin is registered with a runtime.";
        family(text, "connected", "gauge", help, &one(usize::from(self.is_connected)));
    }

    fn histogram(&self, text: &mut String) {
        let mut samples = Vec::new();
        let mut below = 0;
        for (limit, count) in BUCKETS.iter().zip(self.buckets) {
            below += count;
            samples.push((format!("_bucket{{le=\"{limit}\"}}"), below));
        }
        let count = self.injected + self.unmatched + self.rejected;
        samples.push(("_bucket{le=\"+Inf\"}".to_owned(), count));
        samples.push(("_count".to_owned(), count));
        let help = "Time to decide the hooks of a container.";
        family(text, "create_container_seconds", "histogram", help, &samples);
        // Writing to a string does not fail.
        let _ = writeln!(text, "{PREFIX}create_container_seconds_sum {}", self.sum.as_secs_f64());
    }
}

const PREFIX: &str = "oci_hooks_nri_";

fn family(text: &mut String, name: &str, kind: &str, help: &str, samples: &[(String, u64)]) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(text, "{PREFIX}{name}{labels} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_text_contains_the_counts() {
        let mut metrics = Metrics::default();
        metrics.count(ContainerOutcome::Rejected, Duration::from_micros(90));
        metrics.count(ContainerOutcome::Decided(&Decision::default()), Duration::from_micros(900));
        metrics.count(ContainerOutcome::Decided(&Decision::default()), Duration::from_secs(3));
        metrics.set_connected(true);
        let text = metrics.text();
        for line in [
            "# TYPE oci_hooks_nri_containers_total counter",
            "oci_hooks_nri_containers_total{result=\"rejected\"} 1",
            "oci_hooks_nri_containers_total{result=\"unmatched\"} 2",
            "oci_hooks_nri_connected 1",
            "oci_hooks_nri_create_container_seconds_bucket{le=\"0.0001\"} 1",
            "oci_hooks_nri_create_container_seconds_bucket{le=\"0.001\"} 2",
            "oci_hooks_nri_create_container_seconds_bucket{le=\"1\"} 2",
            "oci_hooks_nri_create_container_seconds_bucket{le=\"+Inf\"} 3",
            "oci_hooks_nri_create_container_seconds_count 3",
            "oci_hooks_nri_create_container_seconds_sum 3.00099",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let is_sample = |line: &&str| !line.starts_with('#');
        assert!(text.lines().filter(is_sample).all(|line| line.split(' ').count() == 2), "{text}");
    }
}
