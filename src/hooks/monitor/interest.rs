//! Which events change the hooks that there are.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use notify::event::{Event, EventKind, ModifyKind};

use crate::hooks::set::is_hook_file_name;

/// Which names in a watched directory matter.
#[derive(Default)]
pub struct Interest {
    /// Whether this is a hook directory: names of hook files matter, and what is written to them.
    pub hook_files: bool,
    /// Names that matter when they come, go, or get another mode.
    pub names: HashSet<OsString>,
    /// Names of files that links in hook directories lead to: what is written to them matters.
    pub files: HashSet<OsString>,
}

impl Interest {
    fn includes(&self, name: &OsStr, is_content: bool) -> bool {
        (self.hook_files && is_hook_file_name(name))
            || self.files.contains(name)
            || (!is_content && self.names.contains(name))
    }
}

/// What matters in all watched directories, by their real paths.
#[derive(Default)]
pub struct Interests {
    current: HashMap<PathBuf, Interest>,
    /// What a survey has found so far. Both count until it is finished.
    next: HashMap<PathBuf, Interest>,
    /// Whether a watched directory may have gone, or another one taken its path. `notify` keeps
    /// watching the old one then, or nothing, and says that it watches the path.
    is_stale: bool,
}

impl Interests {
    /// Returns whether an event can change the hooks that there are.
    pub fn take_note(&mut self, event: &Event) -> bool {
        if event.need_rescan() {
            self.is_stale = true;
            return true;
        }
        // Files that are opened are filtered by the kernel; those closed were written.
        let is_content =
            matches!(event.kind, EventKind::Access(_) | EventKind::Modify(ModifyKind::Data(_)));
        let maps = [&self.current, &self.next];
        let matters = event.paths.iter().any(|path| {
            maps.iter().any(|map| map.contains_key(path) || is_of_interest(map, path, is_content))
        });
        let is_gone =
            matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)));
        if matters && is_gone {
            let mut watched = maps.iter().flat_map(|map| map.keys());
            self.is_stale |=
                watched.any(|dir| event.paths.iter().any(|path| dir.starts_with(path)));
        }
        matters
    }

    /// Starts a survey, and returns whether watched directories must be watched anew.
    pub fn begin(&mut self) -> bool {
        // Something is left of a survey that failed.
        let is_stale = std::mem::take(&mut self.is_stale) || !self.next.is_empty();
        self.next.clear();
        is_stale
    }

    /// Returns what is to matter in a directory from now on.
    pub fn next(&mut self, dir: &Path) -> &mut Interest {
        self.next.entry(dir.to_owned()).or_default()
    }

    /// Drops a directory that cannot be watched.
    pub fn drop_next(&mut self, dir: &Path) {
        self.next.remove(dir);
    }

    /// Returns whether a directory was watched before this survey.
    pub fn is_current(&self, dir: &Path) -> bool {
        self.current.contains_key(dir)
    }

    /// Puts what the survey has found in place of the old, and returns directories that matter no more.
    pub fn finish(&mut self) -> Vec<PathBuf> {
        let old = std::mem::replace(&mut self.current, std::mem::take(&mut self.next));
        old.into_keys().filter(|dir| !self.current.contains_key(dir)).collect()
    }
}

fn is_of_interest(map: &HashMap<PathBuf, Interest>, path: &Path, is_content: bool) -> bool {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return false };
    map.get(dir).is_some_and(|interest| interest.includes(name, is_content))
}

#[cfg(test)]
mod tests {
    use notify::event::{AccessKind, AccessMode, CreateKind, DataChange, Flag, RemoveKind};

    use super::*;

    const WRITTEN: EventKind = EventKind::Modify(ModifyKind::Data(DataChange::Any));
    const CLOSED: EventKind = EventKind::Access(AccessKind::Close(AccessMode::Write));
    const CREATED: EventKind = EventKind::Create(CreateKind::File);
    const REMOVED: EventKind = EventKind::Remove(RemoveKind::Folder);

    /// Hook files in `/hooks.d`, the names `hooks.d` and `program` in `/`, a link to `/share/hook`.
    fn interests() -> Interests {
        let mut interests = Interests::default();
        interests.begin();
        interests.next(Path::new("/hooks.d")).hook_files = true;
        interests.next(Path::new("/")).names = ["hooks.d", "program"].map(OsString::from).into();
        interests.next(Path::new("/share")).files.insert("hook".into());
        interests
    }

    fn matters(interests: &mut Interests, kind: EventKind, path: &str) -> bool {
        interests.take_note(&Event::new(kind).add_path(path.into()))
    }

    #[test]
    fn writing_matters_in_hook_files_and_targets_of_links_alone() {
        let mut interests = interests();
        for kind in [WRITTEN, CLOSED] {
            for path in ["/hooks.d/a.json", "/share/hook"] {
                assert!(matters(&mut interests, kind, path), "{kind:?} {path}");
            }
            for path in ["/program", "/hooks.d/README", "/share/other", "/elsewhere/a.json"] {
                assert!(!matters(&mut interests, kind, path), "{kind:?} {path}");
            }
        }
        assert!(matters(&mut interests, CREATED, "/program"));
        assert!(!matters(&mut interests, CREATED, "/other"));
    }

    #[test]
    fn what_matters_to_a_survey_under_way_matters_beside_the_old() {
        let mut interests = interests();
        assert_eq!(interests.finish(), <[PathBuf; 0]>::default());
        assert!(!interests.begin());
        interests.next(Path::new("/new")).hook_files = true;
        assert!(matters(&mut interests, CREATED, "/new/a.json"));
        assert!(matters(&mut interests, CREATED, "/hooks.d/a.json"));
        interests.finish();
        assert!(!matters(&mut interests, CREATED, "/hooks.d/a.json"));
    }

    #[test]
    fn directories_are_watched_anew_when_one_went_or_events_were_lost() {
        let mut interests = interests();
        interests.finish();
        for (path, is_stale) in
            [("/program", false), ("/hooks.d/a.json", false), ("/hooks.d", true)]
        {
            assert!(matters(&mut interests, REMOVED, path));
            assert_eq!(interests.begin(), is_stale, "{path}");
        }
        assert!(interests.take_note(&Event::new(EventKind::Other).set_flag(Flag::Rescan)));
        assert!(interests.begin());
    }

    #[test]
    fn directories_are_watched_anew_after_a_survey_that_failed() {
        let mut interests = interests();
        assert!(interests.begin());
        assert!(!interests.begin());
    }
}
