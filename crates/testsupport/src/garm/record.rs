//! The arguments and files that a runner recorded.

/// Lines of a runner in the log of its instance.
#[derive(Clone, Debug)]
pub struct RunnerLog {
    /// The whole log.
    pub text: String,
}

/// A file of the runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedFile {
    pub mode: String,
    pub owner: String,
    /// File system that the target of its symlink is on.
    pub file_system: String,
    pub real_path: String,
}

impl RunnerLog {
    pub fn new(text: String) -> Self {
        Self { text }
    }

    /// Returns all records under a word.
    pub fn records(&self, word: &str) -> Vec<&str> {
        let lines = self.text.lines().filter_map(|line| line.split_once("@ "));
        let lines = lines.filter_map(|(_, line)| line.strip_prefix(word));
        lines.filter_map(|rest| rest.strip_prefix(' ').or(rest.is_empty().then_some(""))).collect()
    }

    /// Returns the only record under a word.
    #[track_caller]
    pub fn only_record(&self, word: &str) -> &str {
        match self.records(word)[..] {
            [one] => one,
            ref other => panic!("{word} is there {} times:\n{}", other.len(), self.text),
        }
    }

    /// Returns an environment variable of the runner.
    pub fn env(&self, name: &str) -> Option<&str> {
        let mut all = self.records("env").into_iter();
        all.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }

    /// Returns a file of the runner.
    #[track_caller]
    pub fn file(&self, name: &str) -> RecordedFile {
        let all = self.records("file");
        let words = all.iter().map(|line| line.split(' ').collect::<Vec<_>>());
        let found = words.into_iter().find(|words| words[0] == name);
        match found.as_deref() {
            Some(&[_, mode, owner, file_system, real_path]) => RecordedFile {
                mode: mode.to_owned(),
                owner: owner.to_owned(),
                file_system: file_system.to_owned(),
                real_path: real_path.to_owned(),
            },
            _ => panic!("the runner has no {name}:\n{}", self.text),
        }
    }
}
