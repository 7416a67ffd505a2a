//! The filter for events that can change the active hooks.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use notify::event::{Event, EventKind, ModifyKind};

/// The relevant names in a watched directory.
#[derive(Default)]
pub struct RelevantNames {
    /// Returns whether a file of this name is a hook file or CDI specification, whose existence and
    /// content are relevant. `None` for a directory that is watched for other reasons.
    pub is_file: Option<fn(&OsStr) -> bool>,
    /// Names whose creation, removal or mode is relevant.
    pub names: HashSet<OsString>,
    /// Names of files whose content is relevant: programs, and targets of symlinks in hook
    /// directories.
    pub files: HashSet<OsString>,
}

impl RelevantNames {
    fn includes(&self, name: &OsStr, is_content: bool) -> bool {
        self.is_file.is_some_and(|is_file| is_file(name))
            || self.files.contains(name)
            || (!is_content && self.names.contains(name))
    }
}

/// The changes that events reported since the last load.
#[derive(Debug, Default)]
pub struct ReportedChanges {
    /// If set, anything may have changed: a directory, a program, the target of a link.
    pub all: bool,
    /// Names of hook files that changed in some hook directory.
    pub names: HashSet<OsString>,
}

/// The relevant names of all watched directories, by their real paths.
#[derive(Default)]
pub struct EventFilter {
    current: HashMap<PathBuf, RelevantNames>,
    /// The results of the current survey, which determines all directories to watch and their
    /// relevant names. Until it is finished, an event counts if it concerns a relevant name of this
    /// map or of `current`.
    next: HashMap<PathBuf, RelevantNames>,
    /// If set, a watched directory may have vanished or been replaced. `notify` then watches the
    /// old one, or nothing, but reports the path as watched.
    is_stale: bool,
    changes: ReportedChanges,
}

impl EventFilter {
    /// Records an event, and returns whether it can change the active hooks.
    pub fn record(&mut self, event: &Event) -> bool {
        if event.need_rescan() {
            self.is_stale = true;
            self.changes.all = true;
            return true;
        }
        // Only files that are closed after writing cause access events: the event mask excludes the
        // others.
        let is_content =
            matches!(event.kind, EventKind::Access(_) | EventKind::Modify(ModifyKind::Data(_)));
        let maps = [&self.current, &self.next];
        let is_relevant = |path: &&PathBuf| {
            maps.iter()
                .any(|map| map.contains_key(path.as_path()) || is_relevant(map, path, is_content))
        };
        let relevant: Vec<_> = event.paths.iter().filter(is_relevant).collect();
        let is_gone =
            matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)));
        if !relevant.is_empty() && is_gone {
            let mut watched = maps.iter().flat_map(|map| map.keys());
            self.is_stale |=
                watched.any(|dir| event.paths.iter().any(|path| dir.starts_with(path)));
        }
        for path in &relevant {
            match self.hook_file(path) {
                Some(name) => self.changes.names.insert(name.to_owned()),
                // Any other path may affect many hooks.
                None => std::mem::replace(&mut self.changes.all, true),
            };
        }
        !relevant.is_empty()
    }

    /// Returns the file name of a path that is relevant only as a hook file; otherwise `None`.
    fn hook_file<'p>(&self, path: &'p Path) -> Option<&'p OsStr> {
        let (dir, name) = (path.parent()?, path.file_name()?);
        let maps = || [&self.current, &self.next].into_iter();
        let is_hook_file = |names: &RelevantNames| {
            let is_more = names.names.contains(name) || names.files.contains(name);
            names.is_file.is_some_and(|is_file| is_file(name)) && !is_more
        };
        let mut watched = maps().filter_map(|map| map.get(dir)).peekable();
        let is_dir = maps().any(|map| map.contains_key(path));
        (!is_dir && watched.peek().is_some() && watched.all(is_hook_file)).then_some(name)
    }

    /// Returns whether a recorded change may affect more than the hook file of one name.
    pub fn may_change_all(&self) -> bool {
        self.changes.all
    }

    /// Records that events were lost.
    pub fn note_loss(&mut self) {
        self.changes.all = true;
    }

    /// Returns the recorded changes, and clears them.
    pub fn take_changes(&mut self) -> ReportedChanges {
        std::mem::take(&mut self.changes)
    }

    /// Starts a survey of the directories to watch. Returns whether all directories must be watched
    /// again.
    pub fn begin(&mut self) -> bool {
        // `next` is not empty after a failed survey.
        let is_stale = std::mem::take(&mut self.is_stale) || !self.next.is_empty();
        self.next.clear();
        is_stale
    }

    /// Returns the relevant names that the current survey has found in a directory, for the caller
    /// to add to.
    pub fn next(&mut self, dir: &Path) -> &mut RelevantNames {
        self.next.entry(dir.to_owned()).or_default()
    }

    /// Removes a directory that cannot be watched from the current survey.
    pub fn drop_next(&mut self, dir: &Path) {
        self.next.remove(dir);
    }

    /// Returns whether a directory was already watched before the current survey.
    pub fn is_current(&self, dir: &Path) -> bool {
        self.current.contains_key(dir)
    }

    /// Replaces the old results with those of the current survey. Returns the directories that are
    /// no longer relevant.
    pub fn finish(&mut self) -> Vec<PathBuf> {
        let old = std::mem::replace(&mut self.current, std::mem::take(&mut self.next));
        old.into_keys().filter(|dir| !self.current.contains_key(dir)).collect()
    }
}

fn is_relevant(map: &HashMap<PathBuf, RelevantNames>, path: &Path, is_content: bool) -> bool {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return false };
    map.get(dir).is_some_and(|interest| interest.includes(name, is_content))
}

#[cfg(test)]
mod tests {
    use notify::event::{
        AccessKind, AccessMode, CreateKind, DataChange, Flag, RemoveKind, RenameMode,
    };

    use super::*;
    use crate::hooks::set::is_hook_file_name;

    const WRITTEN: EventKind = EventKind::Modify(ModifyKind::Data(DataChange::Any));
    const CLOSED: EventKind = EventKind::Access(AccessKind::Close(AccessMode::Write));
    const CREATED: EventKind = EventKind::Create(CreateKind::File);
    const REMOVED: EventKind = EventKind::Remove(RemoveKind::Folder);

    /// Hook files in `/hooks.d`, the names `hooks.d` and `program` in `/`, a link to `/share/hook`.
    fn interests() -> EventFilter {
        let mut interests = EventFilter::default();
        interests.begin();
        interests.next(Path::new("/hooks.d")).is_file = Some(is_hook_file_name);
        interests.next(Path::new("/")).names = ["hooks.d", "link"].map(OsString::from).into();
        interests.next(Path::new("/share")).files.insert("hook".into());
        interests
    }

    fn is_relevant(interests: &mut EventFilter, kind: EventKind, path: &str) -> bool {
        interests.record(&Event::new(kind).add_path(path.into()))
    }

    #[test]
    fn writes_are_relevant_only_to_hook_files_programs_and_link_targets() {
        let mut interests = interests();
        for kind in [WRITTEN, CLOSED] {
            for path in ["/hooks.d/a.json", "/share/hook"] {
                assert!(is_relevant(&mut interests, kind, path), "{kind:?} {path}");
            }
            for path in ["/link", "/hooks.d/README", "/share/other", "/elsewhere/a.json"] {
                assert!(!is_relevant(&mut interests, kind, path), "{kind:?} {path}");
            }
        }
        assert!(is_relevant(&mut interests, CREATED, "/link"));
        assert!(!is_relevant(&mut interests, CREATED, "/other"));
    }

    #[test]
    fn only_paths_that_are_hook_files_alone_are_recorded_by_name() {
        let mut interests = interests();
        interests.next(Path::new("/hooks.d")).names.insert("dir.json".into());
        for (path, all) in [
            ("/hooks.d/a.json", false),
            ("/hooks.d/dir.json", true),
            ("/hooks.d", true),
            ("/link", true),
            ("/share/hook", true),
        ] {
            assert!(is_relevant(&mut interests, CREATED, path), "{path}");
            let changes = interests.take_changes();
            let names: Vec<_> = changes.names.iter().collect();
            assert_eq!((changes.all, names.is_empty()), (all, all), "{path}: {names:?}");
        }
        let renamed = EventKind::Modify(ModifyKind::Name(RenameMode::Both));
        let event = Event::new(renamed).add_path("/hooks.d/.new".into());
        assert!(interests.record(&event.add_path("/hooks.d/a.json".into())));
        let changes = interests.take_changes();
        assert_eq!((changes.all, changes.names), (false, ["a.json".into()].into()));
        interests.record(&Event::new(EventKind::Other).set_flag(Flag::Rescan));
        assert!(interests.may_change_all());
    }

    #[test]
    fn events_for_the_current_and_last_survey_are_relevant() {
        let mut interests = interests();
        assert_eq!(interests.finish(), <[PathBuf; 0]>::default());
        assert!(!interests.begin());
        interests.next(Path::new("/new")).is_file = Some(is_hook_file_name);
        assert!(is_relevant(&mut interests, CREATED, "/new/a.json"));
        assert!(is_relevant(&mut interests, CREATED, "/hooks.d/a.json"));
        interests.finish();
        assert!(!is_relevant(&mut interests, CREATED, "/hooks.d/a.json"));
    }

    #[test]
    fn directories_are_watched_again_after_removal_or_lost_events() {
        let mut interests = interests();
        interests.finish();
        for (path, is_stale) in [("/link", false), ("/hooks.d/a.json", false), ("/hooks.d", true)] {
            assert!(is_relevant(&mut interests, REMOVED, path));
            assert_eq!(interests.begin(), is_stale, "{path}");
        }
        assert!(interests.record(&Event::new(EventKind::Other).set_flag(Flag::Rescan)));
        assert!(interests.begin());
    }

    #[test]
    fn directories_are_watched_again_after_a_failed_survey() {
        let mut interests = interests();
        assert!(interests.begin());
        assert!(!interests.begin());
    }
}
