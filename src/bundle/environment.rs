//! Environments.

/// What `PATH` is where an image does not say.
pub(super) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// An environment in the order its names first came up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Environment(Vec<String>);

impl Environment {
    /// Takes entries over those that are there; one without `=` takes its name away, as in Docker.
    pub(super) fn extend<'e>(&mut self, entries: impl IntoIterator<Item = &'e str>) {
        for entry in entries {
            let (name, value) = entry.split_once('=').map_or((entry, None), |(n, v)| (n, Some(v)));
            match value {
                Some(value) => self.set(name, value),
                None => self.0.retain(|entry| name_of(entry) != name),
            }
        }
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        let entry = format!("{name}={value}");
        match self.0.iter_mut().find(|entry| name_of(entry) == name) {
            Some(old) => *old = entry,
            None => self.0.push(entry),
        }
    }

    pub(super) fn set_default(&mut self, name: &str, value: &str) {
        if self.get(name).is_none() {
            self.set(name, value);
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().filter_map(|entry| entry.split_once('=')).find(|e| e.0 == name).map(|e| e.1)
    }

    /// Puts directories before `PATH`.
    pub(super) fn prepend_path(&mut self, directories: &[String]) {
        if directories.is_empty() {
            return;
        }
        let path = self.get("PATH").filter(|path| !path.is_empty()).unwrap_or(DEFAULT_PATH);
        let path = format!("{}:{path}", directories.join(":"));
        self.set("PATH", &path);
    }

    pub(super) fn into_entries(self) -> Vec<String> {
        self.0
    }
}

fn name_of(entry: &str) -> &str {
    entry.split_once('=').map_or(entry, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_entries_win_in_the_place_of_the_first() {
        let mut environment = Environment::default();
        environment.extend(["A=1", "B=2", "C="]);
        environment.extend(["A=x=y", "B", "INPUT_FETCH-DEPTH=0"]);
        assert_eq!(environment.get("A"), Some("x=y"));
        assert_eq!(environment.into_entries(), ["A=x=y", "C=", "INPUT_FETCH-DEPTH=0"]);
    }

    #[test]
    fn directories_go_before_the_path_of_the_container() {
        let mut environment = Environment::default();
        environment.prepend_path(&["/a".to_owned()]);
        assert_eq!(environment.get("PATH"), Some(&*format!("/a:{DEFAULT_PATH}")));
        environment.set("PATH", "/bin");
        environment.prepend_path(&["/b".to_owned(), "/a".to_owned()]);
        assert_eq!(environment.get("PATH"), Some("/b:/a:/bin"));
        environment.prepend_path(&[]);
        assert_eq!(environment.get("PATH"), Some("/b:/a:/bin"));
    }
}
