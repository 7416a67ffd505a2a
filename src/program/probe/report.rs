//! The table.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::trial::Trial;
use super::{HOST, Probe};
use crate::program::check::Status;
use crate::program::context::{Context, OutputError};
use crate::program::exit::Exit;
use crate::program::{style, table};
use crate::sys::init::trials::Outcome;
use crate::sys::quantity::counted;

/// What came of all trials from one place.
pub struct Column {
    /// The place.
    pub from: String,
    pub outcomes: Vec<Outcome>,
}

impl Column {
    fn has_control(&self, probe: &Probe) -> bool {
        let first = probe.trials.iter().zip(&self.outcomes).next();
        first.is_some_and(|(trial, outcome)| trial.is_reached(outcome, &probe.token))
    }
}

/// All of it, as `doctor --probe --format json` prints it.
#[derive(Serialize)]
struct ProbeReport<'a> {
    ok: bool,
    trials: Vec<TrialEntry<'a>>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct TrialEntry<'a> {
    name: &'a str,
    status: Status,
    /// The setting that allows it.
    allowed: Option<&'static str>,
    outcomes: BTreeMap<&'a str, &'static str>,
}

impl Probe {
    /// Prints the table, and returns whether nothing was reached that must be out of reach.
    pub fn report(&self, context: &mut Context) -> Result<Exit, OutputError> {
        let report = self.to_report();
        if context.is_json() {
            context.json(&report)?;
        } else {
            self.show(&report, context)?;
        }
        Ok(if report.ok { Exit::Done } else { Exit::Findings })
    }

    fn to_report(&self) -> ProbeReport<'_> {
        let trials = self.trials.iter().enumerate().map(|(at, trial)| self.entry(at, trial));
        let trials: Vec<_> = trials.collect();
        let has_failed = trials.iter().any(|trial| trial.status == Status::Fail);
        let ok = !has_failed && self.problems.is_empty();
        ProbeReport { ok, trials, notes: self.all_notes() }
    }

    fn show(&self, report: &ProbeReport<'_>, context: &mut Context) -> Result<(), OutputError> {
        let from = self.columns.iter().map(|column| format!("FROM {}", column.from.to_uppercase()));
        let titles: Vec<_> = [String::new(), "TRIED".to_owned()].into_iter().chain(from).collect();
        let titles: Vec<_> = titles.iter().map(String::as_str).collect();
        let rows: Vec<_> = report.trials.iter().map(|trial| self.row(trial)).collect();
        table::write_all(&titles, &rows, context)?;
        for note in &report.notes {
            context.hanging(context.paint.paint(style::HINT, note), 2)?;
        }
        let count = |status| report.trials.iter().filter(|trial| trial.status == status).count();
        let found = match (count(Status::Fail) + self.problems.len(), count(Status::Warn)) {
            (0, 0) => "no problems found".to_owned(),
            (0, warned) => counted(warned, "warning"),
            (failed, warned) => {
                format!("{}, {}", counted(failed, "error"), counted(warned, "warning"))
            }
        };
        let summary = match report.ok {
            true => format!("{found}: nothing was reached that must be out of reach"),
            false => format!("{found}: see the rows with `fail`, and the lines below the table"),
        };
        context.hanging(context.paint.paint(style::FAINT, summary), 0)
    }

    fn entry<'a>(&'a self, at: usize, trial: &'a Trial) -> TrialEntry<'a> {
        let outcomes = || self.columns.iter().map(|column| (column, &column.outcomes[at]));
        // What the host itself reaches is for comparison.
        let inside =
            outcomes().filter(|(column, _)| column.from != HOST).map(|(column, outcome)| {
                match trial.status(outcome, &self.token) {
                    // Who does not reach what is its own shows nothing of what else it does not reach.
                    Status::Ok if !column.has_control(self) => Status::Warn,
                    status => status,
                }
            });
        let status = inside.max_by_key(|status| *status as u8).unwrap_or(Status::Warn);
        let word = |outcome: &Outcome| match outcome {
            Outcome::Reached(_) if !trial.is_reached(outcome, &self.token) => "another answered",
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
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "fail",
        };
        let mut row = vec![status.to_owned(), trial.name.to_owned()];
        row.extend(
            self.columns.iter().map(|column| trial.outcomes[column.from.as_str()].to_owned()),
        );
        row
    }

    /// Returns what was not as it should be, why something could not be tried, and what is allowed.
    fn all_notes(&self) -> Vec<String> {
        let mut reasons = BTreeSet::new();
        for Column { from, outcomes } in &self.columns {
            reasons.extend(outcomes.iter().filter_map(|outcome| match outcome {
                Outcome::Untried(reason) => Some(format!("not tried from {from}: {reason}")),
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

    use super::*;
    use crate::program::probe::trial::Meaning;
    use crate::sys::init::trials::Attempt;

    /// Returns a probe with these outcomes of its control and of something else.
    fn probe(columns: &[(&str, [Outcome; 2])]) -> Probe {
        let address = "127.0.0.1:40000".parse().unwrap();
        let column = |(from, outcomes): &(&str, [Outcome; 2])| Column {
            from: (*from).to_owned(),
            outcomes: outcomes.to_vec(),
        };
        Probe {
            directory: "/".into(),
            number: "1".to_owned(),
            word: "probe-1".to_owned(),
            token: "token".to_owned(),
            trials: vec![
                Trial::new("its own".to_owned(), Attempt::Own, Meaning::Control),
                Trial::served("host: tcp 127.0.0.1:40000".to_owned(), Attempt::Tcp(address)),
            ],
            columns: columns.iter().map(column).collect(),
            problems: Vec::new(),
            notes: Vec::new(),
            serving: None,
            trying: None,
        }
    }

    fn reached(said: &str) -> Outcome {
        Outcome::Reached(said.to_owned())
    }

    #[test]
    fn the_report_is_that_of_the_manual() {
        let untried = Outcome::Untried("a Dockerfile action needs buildah".to_owned());
        let probe = probe(&[
            ("host", [reached("own"), reached("token")]),
            ("container", [reached("own"), Outcome::Refused]),
            ("build", [untried.clone(), untried]),
        ]);
        let path = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = path.join("tests/data/container-hook/cli/probe.json");
        let written = serde_json::to_string_pretty(&probe.to_report()).unwrap() + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &written).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), written);
    }

    #[test]
    fn from_where_the_control_is_not_reached_nothing_is_known_to_be_out_of_reach() {
        let status = |control: Outcome, outcome: Outcome| {
            let host = ("host", [reached("own"), reached("token")]);
            let probe = probe(&[host, ("container", [control, outcome])]);
            let report = probe.to_report();
            (report.ok, report.trials.iter().map(|trial| trial.status).collect::<Vec<_>>())
        };
        let refused = || Outcome::Refused;
        assert_eq!(status(reached("own"), refused()), (true, vec![Status::Ok, Status::Ok]));
        assert_eq!(status(refused(), refused()), (false, vec![Status::Fail, Status::Warn]));
        let token = || reached("token");
        assert_eq!(status(reached("own"), token()), (false, vec![Status::Ok, Status::Fail]));
        assert_eq!(status(refused(), token()), (false, vec![Status::Fail, Status::Fail]));
    }
}
