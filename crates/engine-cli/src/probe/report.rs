//! Report of a probe: a table of trials and places, or JSON.

use std::collections::{BTreeMap, BTreeSet};

use oci_hooks_cli::check::CheckStatus;
use oci_hooks_cli::context::{CliContext, OutputError};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::{style, table};
use oci_hooks_files::quantity::format_count;
use oci_hooks_init::trials::ProbeOutcome;
use serde::Serialize;

use super::trial::ProbeCase;
use super::{BUILD, HOST, IsolationProbe};

/// Outcomes of all trials from this host, a container or a build.
pub struct ProbeColumn {
    pub from: String,
    pub outcomes: Vec<ProbeOutcome>,
}

impl ProbeColumn {
    /// Returns whether the outcomes decide the status of trials. Outcomes on the host are only for
    /// comparison, and a build that ran no trial is ignored.
    fn counts(&self) -> bool {
        let is_tried = |outcome: &ProbeOutcome| !matches!(outcome, ProbeOutcome::Untried(_));
        self.from != HOST && (self.from != BUILD || self.outcomes.iter().any(is_tried))
    }

    fn has_control(&self, probe: &IsolationProbe) -> bool {
        let first = probe.trials.iter().zip(&self.outcomes).next();
        first.is_some_and(|(trial, outcome)| trial.is_reached(outcome, &probe.token))
    }
}

/// Output of `doctor --probe --format json`.
#[derive(Serialize)]
struct ProbeReport<'a> {
    ok: bool,
    trials: Vec<TrialEntry<'a>>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct TrialEntry<'a> {
    name: &'a str,
    status: CheckStatus,
    /// Setting that lets jobs reach the target.
    allowed: Option<&'static str>,
    outcomes: BTreeMap<&'a str, &'static str>,
}

impl IsolationProbe {
    /// Prints the report, and returns [`CliExit::Findings`] if a job reached a forbidden target or the probe failed.
    pub fn report(&self, context: &mut CliContext) -> Result<CliExit, OutputError> {
        let report = self.to_report();
        if context.is_json() {
            context.json(&report)?;
        } else {
            self.show(&report, context)?;
        }
        Ok(if report.ok { CliExit::Done } else { CliExit::Findings })
    }

    fn to_report(&self) -> ProbeReport<'_> {
        let trials = self.trials.iter().enumerate().map(|(at, trial)| self.entry(at, trial));
        let trials: Vec<_> = trials.collect();
        let has_failed = trials.iter().any(|trial| trial.status == CheckStatus::Fail);
        let ok = !has_failed && self.problems.is_empty();
        ProbeReport { ok, trials, notes: self.all_notes() }
    }

    fn show(&self, report: &ProbeReport<'_>, context: &mut CliContext) -> Result<(), OutputError> {
        let has_table = self.columns.iter().any(ProbeColumn::counts);
        let from = self.columns.iter().map(|column| format!("FROM {}", column.from.to_uppercase()));
        let titles: Vec<_> = [String::new(), "TRIED".to_owned()].into_iter().chain(from).collect();
        let titles: Vec<_> = titles.iter().map(String::as_str).collect();
        let rows: Vec<_> = report.trials.iter().map(|trial| self.row(trial)).collect();
        if has_table {
            table::write_all(&titles, &rows, context)?;
        }
        for note in &report.notes {
            context.write_hanging_line(context.paint.paint(style::HINT, note), 2)?;
        }
        let count = |status| {
            report.trials.iter().filter(|trial| has_table && trial.status == status).count()
        };
        let found = match (count(CheckStatus::Fail) + self.problems.len(), count(CheckStatus::Warn))
        {
            (0, 0) => "no problems found".to_owned(),
            (0, warned) => format_count(warned, "warning"),
            (failed, warned) => {
                format!("{}, {}", format_count(failed, "error"), format_count(warned, "warning"))
            }
        };
        let summary = match report.ok {
            true => format!("{found}: nothing was reached that must be out of reach"),
            false if count(CheckStatus::Fail) == 0 => format!("{found}: see the lines above"),
            false => format!("{found}: see the rows with `fail`, and the lines below the table"),
        };
        context.write_hanging_line(context.paint.paint(style::FAINT, summary), 0)
    }

    fn entry<'a>(&'a self, at: usize, trial: &'a ProbeCase) -> TrialEntry<'a> {
        let outcomes = || self.columns.iter().map(|column| (column, &column.outcomes[at]));
        let inside = outcomes().filter(|(column, _)| column.counts()).map(|(column, outcome)| {
            match trial.status(outcome, &self.token) {
                // Without the control, an unreached target proves nothing.
                CheckStatus::Ok if !column.has_control(self) => CheckStatus::Warn,
                status => status,
            }
        });
        let status = inside.max_by_key(|status| *status as u8).unwrap_or(CheckStatus::Warn);
        let word = |outcome: &ProbeOutcome| match outcome {
            ProbeOutcome::Reached(_) if !trial.is_reached(outcome, &self.token) => "another target",
            outcome => outcome.word(),
        };
        TrialEntry {
            name: &trial.name,
            status,
            allowed: trial.allowed,
            outcomes: outcomes()
                .map(|(column, outcome)| (column.from.as_str(), word(outcome)))
                .collect(),
        }
    }

    fn row(&self, trial: &TrialEntry<'_>) -> Vec<String> {
        let status = match trial.status {
            CheckStatus::Ok => "ok",
            CheckStatus::Warn => "warn",
            CheckStatus::Fail => "fail",
        };
        let mut row = vec![status.to_owned(), trial.name.to_owned()];
        row.extend(
            self.columns.iter().map(|column| trial.outcomes[column.from.as_str()].to_owned()),
        );
        row
    }

    /// Returns the errors and remarks, the reasons of trials that were not run, and the settings that allow access.
    fn all_notes(&self) -> Vec<String> {
        let mut reasons = BTreeSet::new();
        for ProbeColumn { from, outcomes } in &self.columns {
            reasons.extend(outcomes.iter().filter_map(|outcome| match outcome {
                ProbeOutcome::Untried(reason) => Some(format!("not tried from {from}: {reason}")),
                _ => None,
            }));
        }
        let allowed: BTreeSet<_> = self.trials.iter().filter_map(|trial| trial.allowed).collect();
        let allowed =
            allowed.into_iter().map(|setting| format!("{setting} lets jobs reach this host"));
        let own = self.problems.iter().chain(&self.notes).cloned();
        own.chain(reasons).chain(allowed).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use oci_hooks_init::trials::ProbeAttempt;

    use super::*;
    use crate::probe::trial::ReachCriterion;

    /// Returns a probe with these outcomes of its control and of one other trial.
    fn probe(columns: &[(&str, [ProbeOutcome; 2])]) -> IsolationProbe {
        let address = "127.0.0.1:40000".parse().unwrap();
        let column = |(from, outcomes): &(&str, [ProbeOutcome; 2])| ProbeColumn {
            from: (*from).to_owned(),
            outcomes: outcomes.to_vec(),
        };
        IsolationProbe {
            directory: "/".into(),
            number: "1".to_owned(),
            word: "probe-1".to_owned(),
            token: "token".to_owned(),
            trials: vec![
                ProbeCase::new("its own".to_owned(), ProbeAttempt::Own, ReachCriterion::Control),
                ProbeCase::with_verified_server(
                    "host: tcp 127.0.0.1:40000".to_owned(),
                    ProbeAttempt::Tcp(address),
                ),
            ],
            columns: columns.iter().map(column).collect(),
            problems: Vec::new(),
            notes: Vec::new(),
            serving: None,
            trying: None,
        }
    }

    fn reached_outcome(said: &str) -> ProbeOutcome {
        ProbeOutcome::Reached(said.to_owned())
    }

    #[test]
    fn report_matches_the_manual() {
        let untried = ProbeOutcome::Untried("a Dockerfile action needs buildah".to_owned());
        let probe = probe(&[
            ("host", [reached_outcome("own"), reached_outcome("token")]),
            ("container", [reached_outcome("own"), ProbeOutcome::Refused]),
            ("build", [untried.clone(), untried]),
        ]);
        let path = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = path.join("../container-hook/tests/data/cli/probe.json");
        let written = serde_json::to_string_pretty(&probe.to_report()).unwrap() + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &written).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), written);
    }

    #[test]
    fn answers_without_the_token_are_of_another_target() {
        let host = ("host", [reached_outcome("own"), reached_outcome("token")]);
        let container = ("container", [reached_outcome("own"), reached_outcome("other")]);
        let probe = probe(&[host, container]);
        let report = probe.to_report();
        let trial = &report.trials[1];
        assert_eq!(
            (trial.status, trial.outcomes["container"]),
            (CheckStatus::Warn, "another target")
        );
    }

    #[test]
    fn unreachable_control_leaves_results_unknown() {
        let status = |control: ProbeOutcome, outcome: ProbeOutcome| {
            let host = ("host", [reached_outcome("own"), reached_outcome("token")]);
            let probe = probe(&[host, ("container", [control, outcome])]);
            let report = probe.to_report();
            (report.ok, report.trials.iter().map(|trial| trial.status).collect::<Vec<_>>())
        };
        let refused = || ProbeOutcome::Refused;
        assert_eq!(
            status(reached_outcome("own"), refused()),
            (true, vec![CheckStatus::Ok, CheckStatus::Ok])
        );
        assert_eq!(
            status(refused(), refused()),
            (false, vec![CheckStatus::Fail, CheckStatus::Warn])
        );
        let token = || reached_outcome("token");
        assert_eq!(
            status(reached_outcome("own"), token()),
            (false, vec![CheckStatus::Ok, CheckStatus::Fail])
        );
        assert_eq!(status(refused(), token()), (false, vec![CheckStatus::Fail, CheckStatus::Fail]));
    }
}
