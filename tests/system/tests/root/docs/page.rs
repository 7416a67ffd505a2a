//! Pages of the documentation: code blocks with test directives, headings and links.

use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// The parsed parts of a page.
#[derive(Debug, Default)]
pub(crate) struct DocsPage {
    pub(crate) blocks: Vec<PageBlock>,
    pub(crate) headings: Vec<PageHeading>,
    /// Targets of links and pictures, with their lines.
    pub(crate) links: Vec<(usize, String)>,
    /// Errors in the page, each with its line number.
    pub(crate) problems: Vec<String>,
}

/// A heading with its anchor on GitHub.
#[derive(Debug)]
pub(crate) struct PageHeading {
    pub(crate) line: usize,
    pub(crate) level: usize,
    pub(crate) text: String,
    pub(crate) anchor: String,
}

/// A code block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PageBlock {
    /// Line number of the first line of code.
    pub(crate) line: usize,
    pub(crate) language: String,
    pub(crate) text: String,
    pub(crate) directive: BlockDirective,
}

/// Directive in a comment before a block: `<!-- test: … -->`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BlockDirective {
    None,
    /// Exit status of the last command of the block.
    Exit(i32),
    /// Environment variable of the commands, `NAME=VALUE`.
    Env(String),
    /// Reason not to run the block.
    Skip(String),
    /// File with the block as its content.
    File(String),
    /// File that the block is appended to.
    Append(String),
    /// Program whose settings file the block is.
    Settings(String),
}

/// A command of a block, and its expected output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PageCommand {
    pub(crate) line: usize,
    pub(crate) user: &'static str,
    pub(crate) text: String,
    pub(crate) output: Vec<String>,
}

impl DocsPage {
    pub(crate) fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut directive: Option<(usize, BlockDirective)> = None;
        let mut code: Option<PageBlock> = None;
        let mut heading: Option<PageHeading> = None;
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = line_of(text, &range);
            if code.is_none() && stands_between(&event) {
                page.add_misplaced(directive.take());
            }
            match event {
                Event::Html(comment) | Event::InlineHtml(comment) => {
                    page.add_misplaced(directive.take());
                    match BlockDirective::parse(&comment) {
                        Some(Ok(said)) => directive = Some((line, said)),
                        Some(Err(error)) => page.problems.push(format!("{line}: {error}")),
                        None => {}
                    }
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    let (language, first) = match kind {
                        CodeBlockKind::Fenced(language) => (language.into_string(), line + 1),
                        CodeBlockKind::Indented => (String::new(), line),
                    };
                    if language.is_empty() {
                        page.problems.push(format!("{line}: the block of code has no language"));
                    }
                    let directive = directive.take().map_or(BlockDirective::None, |(_, said)| said);
                    code =
                        Some(PageBlock { line: first, language, text: String::new(), directive });
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(code.take()),
                Event::Start(Tag::Heading { level, .. }) => {
                    let level = level as usize;
                    let (text, anchor) = (String::new(), String::new());
                    heading = Some(PageHeading { line, level, text, anchor });
                }
                Event::End(TagEnd::Heading(_)) => {
                    if let Some(heading) = heading.take() {
                        page.add_heading(heading);
                    }
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push((line, dest_url.into_string()));
                }
                Event::Text(part) | Event::Code(part) => {
                    if let Some(block) = &mut code {
                        block.text.push_str(&part);
                    } else if let Some(heading) = &mut heading {
                        heading.text.push_str(&part);
                    }
                }
                _ => {}
            }
        }
        page.add_misplaced(directive);
        page
    }

    fn add_misplaced(&mut self, directive: Option<(usize, BlockDirective)>) {
        let said = directive.map(|(line, _)| format!("{line}: the comment is not before a block"));
        self.problems.extend(said);
    }

    fn add_heading(&mut self, mut heading: PageHeading) {
        let anchor = anchor(&heading.text);
        let is_same = |other: &&PageHeading| {
            let rest = other.anchor.strip_prefix(anchor.as_str());
            rest.is_some_and(|rest| {
                rest.is_empty() || rest.trim_start_matches('-').parse::<u32>().is_ok()
            })
        };
        let same = self.headings.iter().filter(is_same).count();
        heading.anchor = if same == 0 { anchor } else { format!("{anchor}-{same}") };
        self.headings.push(heading);
    }

    /// Returns the range of lines of the section with this heading.
    pub(crate) fn section(&self, heading: &str) -> Option<Range<usize>> {
        let at = self.headings.iter().position(|candidate| candidate.text == heading)?;
        let level = self.headings[at].level;
        let next = self.headings[at + 1..].iter().find(|heading| heading.level <= level);
        Some(self.headings[at].line..next.map_or(usize::MAX, |heading| heading.line))
    }
}

impl BlockDirective {
    /// Parses a comment. Returns nothing if it is no directive.
    fn parse(comment: &str) -> Option<Result<Self, String>> {
        let said = comment.trim().strip_prefix("<!-- test:")?;
        let Some(said) = said.strip_suffix("-->") else {
            return Some(Err("the comment has no end on its line".to_owned()));
        };
        let (word, rest) = said.trim().split_once(' ').unwrap_or((said.trim(), ""));
        let rest = rest.trim().to_owned();
        Some(match (word, rest.as_str()) {
            (_, "") => Err(format!("`{word}` of the comment has no value")),
            ("exit", status) => status
                .parse()
                .map(Self::Exit)
                .map_err(|_| format!("exit status {status:?} of the comment is no number")),
            ("env", _) => Ok(Self::Env(rest)),
            ("skip", _) => Ok(Self::Skip(rest)),
            ("file", _) => Ok(Self::File(rest)),
            ("append", _) => Ok(Self::Append(rest)),
            ("settings", "container-hook" | "garm-provider-runc") => Ok(Self::Settings(rest)),
            _ => Err(format!("unknown comment `test: {word} {rest}`")),
        })
    }
}

impl PageBlock {
    /// Returns the commands of a console block.
    pub(crate) fn commands(&self) -> Result<Vec<PageCommand>, String> {
        let mut commands: Vec<PageCommand> = Vec::new();
        let mut lines = self.text.lines().enumerate().map(|(at, line)| (self.line + at, line));
        while let Some((line, text)) = lines.next() {
            let (user, text) = match (text.strip_prefix("$ "), text.strip_prefix("# ")) {
                (Some(text), _) => ("runner", text),
                (None, Some(text)) => ("root", text),
                (None, None) => {
                    let last = commands.last_mut().ok_or_else(|| {
                        format!(
                            "{line}: output without a command: a command begins with `$ ` or `# `"
                        )
                    })?;
                    last.output.push(text.to_owned());
                    continue;
                }
            };
            let mut text = text.to_owned();
            while text.ends_with('\\') {
                let (_, more) = lines.next().ok_or_else(|| format!("{line}: `\\` at the end"))?;
                text = format!("{text}\n{more}");
            }
            if let Some(delimiter) = here_document(&text) {
                loop {
                    let (_, more) = lines
                        .next()
                        .ok_or_else(|| format!("{line}: the here-document has no {delimiter}"))?;
                    text = format!("{text}\n{more}");
                    if more.trim_start_matches('\t') == delimiter {
                        break;
                    }
                }
            }
            commands.push(PageCommand { line, user, text, output: Vec::new() });
        }
        if commands.is_empty() {
            return Err(format!("{}: the block has no command", self.line));
        }
        Ok(commands)
    }
}

/// Returns the delimiter of the here-document of a command.
fn here_document(command: &str) -> Option<String> {
    let at = command.find("<<")?;
    let rest = &command[at + 2..];
    if rest.starts_with('<') {
        return None;
    }
    let rest = rest.trim_start_matches('-').trim_start().trim_start_matches(['\'', '"', '\\']);
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| rest[..end].to_owned())
}

/// Returns whether an event between a comment and a block is visible text.
fn stands_between(event: &Event<'_>) -> bool {
    matches!(
        event,
        Event::Text(_) | Event::Code(_) | Event::Start(Tag::Heading { .. } | Tag::Table(_))
    )
}

/// Returns the anchor that GitHub generates for a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn line_of(text: &str, range: &Range<usize>) -> usize {
    text[..range.start].matches('\n').count() + 1
}

#[test]
fn blocks_have_their_lines_and_directives() {
    let text = "# A\n\n<!-- test: exit 1 -->\n```console\n$ false\n```\n\n\
                - in a list:\n\n  <!-- test: skip needs GitHub -->\n  ```console\n  # true\n  ```\n";
    let page = DocsPage::parse(text);
    let seen: Vec<_> = page
        .blocks
        .iter()
        .map(|block| (block.line, block.text.as_str(), &block.directive))
        .collect();
    let skip = BlockDirective::Skip("needs GitHub".to_owned());
    assert_eq!(seen, [(5, "$ false\n", &BlockDirective::Exit(1)), (12, "# true\n", &skip)]);
}

#[test]
fn invalid_code_blocks_and_comments_are_errors() {
    for (text, expected) in [
        ("```\nx\n```\n", "1: the block of code has no language"),
        ("a\n\n    indented\n", "3: the block of code has no language"),
        ("<!-- test: later -->\n```console\n$ a\n```\n", "1: `later` of the comment has no value"),
        ("<!-- test: run it -->\n```console\n$ a\n```\n", "1: unknown comment `test: run it`"),
        ("<!-- test: exit x -->\n", "1: exit status \"x\" of the comment is no number"),
        ("<!-- test: skip it -->\n\ntext\n", "1: the comment is not before a block"),
        ("<!-- test: skip it -->\n", "1: the comment is not before a block"),
    ] {
        assert_eq!(DocsPage::parse(text).problems, [expected], "{text}");
    }
}

#[test]
fn commands_continue_over_lines_and_have_output() {
    let text = "$ a \\\n  b\nout\n\nput\n# cat >f <<'END'\n$ no command\nEND\n$ c\n";
    let block = PageBlock {
        line: 10,
        language: "console".to_owned(),
        text: text.to_owned(),
        directive: BlockDirective::None,
    };
    let commands = block.commands().unwrap();
    let seen: Vec<_> = commands.iter().map(|c| (c.line, c.user, c.text.as_str())).collect();
    let expected = [
        (10, "runner", "a \\\n  b"),
        (15, "root", "cat >f <<'END'\n$ no command\nEND"),
        (18, "runner", "c"),
    ];
    assert_eq!(seen, expected);
    assert_eq!(commands[0].output, ["out", "", "put"]);
    assert!(PageBlock { text: "out\n".to_owned(), ..block }.commands().is_err());
}

#[test]
fn anchors_match_those_of_github() {
    let page = DocsPage::parse("# `a b`, c_d: e-f!\n## x\n## x\n# y\n");
    let anchors: Vec<_> = page.headings.iter().map(|heading| heading.anchor.as_str()).collect();
    assert_eq!(anchors, ["a-b-c_d-e-f", "x", "x-1", "y"]);
    assert_eq!(page.section("x"), Some(2..3));
    assert_eq!(page.section("y"), Some(4..usize::MAX));
}
