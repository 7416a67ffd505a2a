//! What a runner wrote down of what it was given.

/// The lines of a runner in the log of its instance.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// The whole log.
    pub(crate) text: String,
}

/// A file that a runner was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) mode: String,
    pub(crate) owner: String,
    /// The file system that it is on, its link followed.
    pub(crate) file_system: String,
    pub(crate) real_path: String,
}

impl Record {
    pub(crate) fn new(text: String) -> Self {
        Self { text }
    }

    /// Returns what was written down under a word, each time.
    pub(crate) fn all(&self, word: &str) -> Vec<&str> {
        let lines = self.text.lines().filter_map(|line| line.split_once("@ "));
        let lines = lines.filter_map(|(_, line)| line.strip_prefix(word));
        lines.filter_map(|rest| rest.strip_prefix(' ').or(rest.is_empty().then_some(""))).collect()
    }

    /// Returns what was written down once under a word.
    #[track_caller]
    pub(crate) fn one(&self, word: &str) -> &str {
        match self.all(word)[..] {
            [one] => one,
            ref other => panic!("{word} is there {} times:\n{}", other.len(), self.text),
        }
    }

    /// Returns a variable of the runner.
    pub(crate) fn env(&self, name: &str) -> Option<&str> {
        let mut all = self.all("env").into_iter();
        all.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }

    /// Returns a file of the runner.
    #[track_caller]
    pub(crate) fn file(&self, name: &str) -> File {
        let all = self.all("file");
        let words = all.iter().map(|line| line.split(' ').collect::<Vec<_>>());
        let found = words.into_iter().find(|words| words[0] == name);
        match found.as_deref() {
            Some(&[_, mode, owner, file_system, real_path]) => File {
                mode: mode.to_owned(),
                owner: owner.to_owned(),
                file_system: file_system.to_owned(),
                real_path: real_path.to_owned(),
            },
            _ => panic!("the runner has no {name}:\n{}", self.text),
        }
    }
}
