//! The log of a job, as GitHub's runner shows it: lines that are workflow commands are carried out.

use anstyle::Style;
use oci_hooks::program::context::{Context, OutputError};
use oci_hooks::program::style;

/// A longer line is shown in parts.
const MAX_LINE_BYTES: usize = 64 << 10;

/// The log of a job that is shown while it is written.
pub struct JobLog<'a> {
    context: &'a mut Context,
    /// The beginnings of lines whose ends have not come, on standard output and standard error.
    lines: [Vec<u8>; 2],
    commands: Commands,
    /// Why lines are not shown any more.
    failed: Option<OutputError>,
    /// The lines, if they are not to be shown.
    kept: Option<Vec<String>>,
}

impl<'a> JobLog<'a> {
    pub fn new(context: &'a mut Context) -> Self {
        JobLog {
            context,
            lines: Default::default(),
            commands: Commands::default(),
            failed: None,
            kept: None,
        }
    }

    /// Returns one whose lines are not shown.
    pub fn kept(context: &'a mut Context) -> Self {
        JobLog { kept: Some(Vec::new()), ..JobLog::new(context) }
    }

    /// Takes the lines that were not shown.
    pub fn take(&mut self) -> Vec<String> {
        self.kept.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Shows what a step of the job is called.
    pub fn title(&mut self, text: &str) {
        self.show_in(style::TITLE, text);
    }

    /// Shows how long a step of the job took.
    pub fn time(&mut self, name: &str, seconds: f64) {
        self.show_in(style::FAINT, &format!("{name:8} {seconds:.3} s"));
    }

    /// Shows an error of the runner.
    pub fn error(&mut self, text: &str) {
        self.show_in(style::BAD, &format!("Error: {text}"));
    }

    /// Takes what a hook wrote to one of its two streams, and shows what is whole of it.
    pub fn write(&mut self, stream: usize, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.lines[stream].extend_from_slice(part);
            if part.ends_with(b"\n") || self.lines[stream].len() >= MAX_LINE_BYTES {
                self.end_line(stream);
            }
        }
    }

    /// Shows the last lines, if they have no end.
    pub fn end(&mut self) {
        for stream in 0..self.lines.len() {
            if !self.lines[stream].is_empty() {
                self.end_line(stream);
            }
        }
    }

    /// Shows a line of this program.
    pub fn show(&mut self, line: &str) {
        if let Some(kept) = &mut self.kept {
            kept.push(line.to_owned());
        } else if self.context.is_json() {
            self.context.error_line(line);
        } else if self.failed.is_none() {
            // The job is cleaned up all the same.
            self.failed = self.context.line(line).and_then(|()| self.context.flush()).err();
        }
    }

    /// Returns whether all was shown.
    pub fn finish(self) -> Result<(), OutputError> {
        self.failed.map_or(Ok(()), Err)
    }

    fn end_line(&mut self, stream: usize) {
        let line = std::mem::take(&mut self.lines[stream]);
        let line = String::from_utf8_lossy(&line);
        let line = line.strip_suffix('\n').unwrap_or(&line);
        if let Some((style, text)) = self.commands.take(line.strip_suffix('\r').unwrap_or(line)) {
            self.show_in(style, &text);
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

/// What workflow commands have said until now.
#[derive(Default)]
struct Commands {
    /// The word that ends a part of the log without commands.
    stopped: Option<String>,
    secrets: Vec<String>,
}

impl Commands {
    /// Returns what is shown of a line, if anything is.
    fn take(&mut self, line: &str) -> Option<(Style, String)> {
        let shown = match (command(line), &self.stopped) {
            (Some((word, _)), Some(end)) if word == end => {
                self.stopped = None;
                return None;
            }
            (Some((name, data)), None) => self.obey(name, &data)?,
            _ => (Style::new(), line.to_owned()),
        };
        let (style, text) = shown;
        let hide = |text: String, secret: &String| text.replace(secret, "***");
        Some((style, self.secrets.iter().fold(text, hide)))
    }

    fn obey(&mut self, name: &str, data: &str) -> Option<(Style, String)> {
        match name {
            "group" => return Some((style::TITLE, data.to_owned())),
            "error" => return Some((style::BAD, format!("Error: {data}"))),
            "warning" => return Some((style::WARNING, format!("Warning: {data}"))),
            "notice" => return Some((style::HINT, format!("Notice: {data}"))),
            "debug" => return Some((style::FAINT, format!("Debug: {data}"))),
            "stop-commands" => self.stopped = Some(data.to_owned()),
            "add-mask" if !data.is_empty() => self.secrets.push(data.to_owned()),
            // The runner shows no others.
            _ => {}
        }
        None
    }
}

/// Returns the name and the data of a line that is a command: `::name properties::data`.
fn command(line: &str) -> Option<(&str, String)> {
    let (head, data) = line.trim_start().strip_prefix("::")?.split_once("::")?;
    let name = head.split(' ').next().filter(|name| !name.is_empty())?;
    Some((name, data.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")))
}

#[test]
fn commands_are_shown_as_the_runner_shows_them() {
    let mut commands = Commands::default();
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
