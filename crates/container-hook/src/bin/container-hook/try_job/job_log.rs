//! The log of a job as GitHub's runner shows it: workflow commands are carried out.

use anstyle::Style;
use oci_hooks_cli::context::{CliContext, OutputError};
use oci_hooks_cli::style;

/// Maximum length of a line; longer ones are split.
const MAX_LINE_BYTES: usize = 64 << 10;

/// Number of errors that are shown again.
const MAX_ERRORS: usize = 20;

/// The log of a job, shown while it is written.
pub struct JobLog<'a> {
    context: &'a mut CliContext,
    /// Incomplete lines of standard output and standard error.
    lines: [Vec<u8>; 2],
    commands: WorkflowCommands,
    /// First error of writing the log, after which no line is shown.
    failed: Option<OutputError>,
    /// Errors of the hook, for [`Self::repeat_errors`].
    errors: Vec<String>,
    /// Collected lines; none if lines are shown.
    kept: Option<Vec<String>>,
}

impl<'a> JobLog<'a> {
    pub fn new(context: &'a mut CliContext) -> Self {
        JobLog {
            context,
            lines: Default::default(),
            commands: WorkflowCommands::default(),
            failed: None,
            errors: Vec::new(),
            kept: None,
        }
    }

    /// Returns a log that collects its lines instead of showing them.
    pub fn new_collecting(context: &'a mut CliContext) -> Self {
        JobLog { kept: Some(Vec::new()), ..JobLog::new(context) }
    }

    /// Takes the collected lines.
    pub fn take(&mut self) -> Vec<String> {
        self.kept.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Shows the title of a step.
    pub fn title(&mut self, text: &str) {
        self.show_in(style::TITLE, text);
    }

    /// Shows the duration of a step.
    pub fn time(&mut self, name: &str, seconds: f64) {
        self.show_in(style::FAINT, &format!("{name:8} {seconds:.3} s"));
    }

    /// Shows an error of the runner.
    pub fn error(&mut self, text: &str) {
        self.show_in(style::BAD, &format!("Error: {text}"));
    }

    /// Discards the errors so far: those of a step are not shown again.
    pub fn forget_errors(&mut self) {
        self.errors.clear();
    }

    /// Shows the hook's errors again.
    pub fn repeat_errors(&mut self) {
        for text in std::mem::take(&mut self.errors) {
            self.show_in(style::BAD, &text);
        }
    }

    /// Appends the hook's output on a stream, and shows the complete lines.
    pub fn write(&mut self, stream: usize, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.lines[stream].extend_from_slice(part);
            if part.ends_with(b"\n") || self.lines[stream].len() >= MAX_LINE_BYTES {
                self.end_line(stream);
            }
        }
    }

    /// Shows the incomplete last lines.
    pub fn end(&mut self) {
        for stream in 0..self.lines.len() {
            if !self.lines[stream].is_empty() {
                self.end_line(stream);
            }
        }
    }

    /// Shows a line as it is, or collects it.
    pub fn show(&mut self, line: &str) {
        if let Some(kept) = &mut self.kept {
            kept.push(line.to_owned());
        } else if self.context.is_json() {
            self.context.error_line(line);
        } else if self.failed.is_none() {
            // A failure to write the log must not stop the cleanup.
            self.failed = self.context.line(line).and_then(|()| self.context.flush()).err();
        }
    }

    /// Returns the first error of writing the log.
    pub fn finish(self) -> Result<(), OutputError> {
        self.failed.map_or(Ok(()), Err)
    }

    fn end_line(&mut self, stream: usize) {
        let line = std::mem::take(&mut self.lines[stream]);
        let line = String::from_utf8_lossy(&line);
        let line = line.strip_suffix('\n').unwrap_or(&line);
        if let Some((style, text)) = self.commands.take(line.strip_suffix('\r').unwrap_or(line)) {
            self.show_in(style, &text);
            if style == style::BAD && self.errors.len() < MAX_ERRORS {
                self.errors.push(text);
            }
        }
    }

    fn show_in(&mut self, style: Style, text: &str) {
        let line = match self.context.is_json() {
            true => self.context.error_paint.paint(style, text),
            false => self.context.paint.paint(style, text),
        };
        self.show(&line);
    }
}

/// State of the workflow commands.
#[derive(Default)]
struct WorkflowCommands {
    /// Token of `stop-commands`; set while commands are ignored.
    stopped: Option<String>,
    secrets: Vec<String>,
}

impl WorkflowCommands {
    /// Returns the line to show, if any.
    fn take(&mut self, line: &str) -> Option<(Style, String)> {
        let shown = match (command(line), &self.stopped) {
            (Some((word, _)), Some(end)) if word == end => {
                self.stopped = None;
                return None;
            }
            (Some((name, data)), None) => self.apply_command(name, &data)?,
            _ => (Style::new(), line.to_owned()),
        };
        let (style, text) = shown;
        let hide = |text: String, secret: &String| text.replace(secret, "***");
        Some((style, self.secrets.iter().fold(text, hide)))
    }

    fn apply_command(&mut self, name: &str, data: &str) -> Option<(Style, String)> {
        match name {
            "group" => return Some((style::TITLE, data.to_owned())),
            "error" => return Some((style::BAD, format!("Error: {data}"))),
            "warning" => return Some((style::WARNING, format!("Warning: {data}"))),
            "notice" => return Some((style::HINT, format!("Notice: {data}"))),
            "debug" => return Some((style::FAINT, format!("Debug: {data}"))),
            "stop-commands" => self.stopped = Some(data.to_owned()),
            "add-mask" if !data.is_empty() => self.secrets.push(data.to_owned()),
            // The runner does not show other commands.
            _ => {}
        }
        None
    }
}

/// Parses a workflow command, `::name properties::data`; returns its name and data.
fn command(line: &str) -> Option<(&str, String)> {
    let (head, data) = line.trim_start().strip_prefix("::")?.split_once("::")?;
    let name = head.split(' ').next().filter(|name| !name.is_empty())?;
    Some((name, data.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")))
}

#[test]
fn workflow_commands_are_shown_like_on_the_runner() {
    let mut commands = WorkflowCommands::default();
    let mut shown = |line: &str| commands.take(line).map(|(_, text)| text);
    for (line, expected) in [
        ("::group::Pull a::b", Some("Pull a::b")),
        ("::error file=a,line=1::100%25%0Aof it", Some("Error: 100%\nof it")),
        ("::endgroup::", None),
        ("::add-mask::hunter2", None),
        ("  it is hunter2", Some("  it is ***")),
        ("::stop-commands::word", None),
        ("::error::of a container: hunter2", Some("::error::of a container: ***")),
        ("::word::", None),
        ("::warning::again", Some("Warning: again")),
        (":: no command", Some(":: no command")),
    ] {
        assert_eq!(shown(line).as_deref(), expected, "{line}");
    }
}
