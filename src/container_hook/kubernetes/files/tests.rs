//! Exchanges with the agent as it is, as a process with pipes, and with what pretends to be one.

mod agents;
mod hostile;
mod lost;
mod many;
mod trees;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use agents::{Agent, run};
use trees::{change, grow, snapshot};

use super::error::Summary;
use super::get::get;
use super::host::HostTree;
use super::list::list;
use super::put::put;
use super::record::Record;
use super::transfer::transfer;
use super::*;
use crate::container_hook::kubernetes::agent::Session;
use crate::sys::error::chain;
use crate::sys::init::frames::files::Scope;

const LIMITS: Limits = Limits { entries: 1_000_000, bytes: 1 << 30 };

/// The runner's directory, the container's, and what both had.
struct Ends {
    dir: tempfile::TempDir,
}

impl Ends {
    fn new() -> Self {
        Ends::of(tempfile::tempdir().unwrap())
    }

    /// Returns ends in memory, where time does not depend on a disk.
    fn in_memory() -> Self {
        Ends::of(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn of(dir: tempfile::TempDir) -> Self {
        for name in ["host", "container", "state"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Ends { dir }
    }

    fn host(&self, path: &str) -> PathBuf {
        self.dir.path().join("host").join(path)
    }

    fn container(&self, path: &str) -> PathBuf {
        self.dir.path().join("container").join(path)
    }

    fn record(&self) -> Record {
        Record::new(self.dir.path().join("state/record"))
    }

    async fn put(&self, session: &mut Session<'_>, scope: &Scope) -> Result<Summary, FilesError> {
        let from = HostTree::open(&self.host("")).unwrap();
        put(session, &from, &self.container(""), scope, &self.record()).await
    }

    async fn get(&self, session: &mut Session<'_>, scope: &Scope) -> Result<Summary, FilesError> {
        let into = HostTree::open(&self.host("")).unwrap();
        get(session, &self.container(""), &into, scope, &self.record(), LIMITS).await
    }

    fn assert_same(&self) {
        let (host, container) = (snapshot(&self.host("")), snapshot(&self.container("")));
        for (path, of_host) in &host {
            let of_container = container.get(path);
            assert_eq!(Some(of_host), of_container, "{}", path.escape_ascii());
        }
        assert_eq!(host.len(), container.len());
    }
}

fn scope(include: &[&str]) -> Scope {
    let include = include.iter().map(|path| path.as_bytes().to_vec()).collect();
    Scope { include, ..Scope::default() }
}

#[test]
fn trees_become_the_same_in_both_directions() {
    run(async {
        let agent = Agent::new();
        for seed in 0..12 {
            let (ends, mut random) = (Ends::in_memory(), fastrand::Rng::with_seed(seed));
            let mut session = Session::new(&agent);
            grow(&ends.host(""), &mut random, 3);
            let summary = ends.put(&mut session, &Scope::all()).await.unwrap();
            assert_eq!(summary.written, summary.entries);
            ends.assert_same();
            for _ in 0..3 {
                change(&ends.container(""), &mut random);
                ends.get(&mut session, &Scope::all()).await.unwrap();
                ends.assert_same();
                change(&ends.host(""), &mut random);
                ends.put(&mut session, &Scope::all()).await.unwrap();
                ends.assert_same();
            }
            // Nothing has changed since.
            for summary in [
                ends.put(&mut session, &Scope::all()).await.unwrap(),
                ends.get(&mut session, &Scope::all()).await.unwrap(),
            ] {
                assert_eq!((summary.written, summary.removed), (0, 0));
            }
        }
    });
}

#[test]
fn what_only_the_other_end_has_changed_stays() {
    run(async {
        let (agent, ends) = (Agent::new(), Ends::new());
        let mut session = Session::new(&agent);
        for name in ["both", "gone", "container", "host"] {
            fs::write(ends.host(name), "1").unwrap();
        }
        ends.put(&mut session, &Scope::all()).await.unwrap();
        fs::write(ends.container("container"), "of the container").unwrap();
        fs::write(ends.container("new in container"), "").unwrap();
        fs::write(ends.host("host"), "of the host").unwrap();
        fs::write(ends.host("new on host"), "").unwrap();
        fs::remove_file(ends.host("gone")).unwrap();

        let summary = ends.put(&mut session, &Scope::all()).await.unwrap();
        assert_eq!((summary.written, summary.removed), (2, 1));
        assert_eq!(fs::read(ends.container("container")).unwrap(), b"of the container");
        assert_eq!(fs::read(ends.container("host")).unwrap(), b"of the host");
        assert!(ends.container("new in container").exists());
        assert!(!ends.container("gone").exists());

        fs::write(ends.host("host"), "again").unwrap();
        fs::remove_file(ends.container("both")).unwrap();
        let summary = ends.get(&mut session, &Scope::all()).await.unwrap();
        assert_eq!((summary.written, summary.removed), (2, 1));
        assert_eq!(fs::read(ends.host("host")).unwrap(), b"again");
        assert!(ends.host("new on host").exists());
        assert!(!ends.host("both").exists());
        ends.put(&mut session, &Scope::all()).await.unwrap();
        ends.assert_same();
    });
}

#[test]
fn only_the_scope_is_exchanged() {
    run(async {
        let (agent, ends) = (Agent::new(), Ends::new());
        let mut session = Session::new(&agent);
        for path in ["a/b/c", "a/b2", "a.b", "tool/x", "z"] {
            let path = ends.host(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "1").unwrap();
        }
        let exclude = vec![b"tool".to_vec(), b"a/b2".to_vec()];
        let most = Scope { exclude, ..Scope::all() };
        ends.put(&mut session, &most).await.unwrap();
        for (path, is_there) in [("a/b/c", true), ("a/b2", false), ("a.b", true), ("tool", false)] {
            assert_eq!(ends.container(path).exists(), is_there, "{path}");
        }
        for path in ["a/b/c", "a.b", "z"] {
            fs::write(ends.container(path), "22").unwrap();
        }
        fs::remove_file(ends.container("z")).unwrap();
        let summary = ends.get(&mut session, &scope(&["a/b"])).await.unwrap();
        assert_eq!((summary.written, summary.removed), (1, 0));
        // What was not meant is still known to be different.
        let summary = ends.get(&mut session, &most).await.unwrap();
        assert_eq!((summary.written, summary.removed), (1, 1));
        assert_eq!(fs::read(ends.host("a.b")).unwrap(), b"22");
    });
}

#[test]
fn links_are_kept_and_never_followed() {
    run(async {
        let (agent, ends) = (Agent::new(), Ends::new());
        let mut session = Session::new(&agent);
        let outside = ends.dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "secret").unwrap();
        fs::create_dir_all(ends.host("work/plain")).unwrap();
        ends.put(&mut session, &Scope::all()).await.unwrap();

        symlink(&outside, ends.container("work/link")).unwrap();
        symlink("/nowhere", ends.container("work/plain/link")).unwrap();
        let without_links = vec![b"work/plain".to_vec()];
        let plain = Scope { without_links, ..Scope::all() };
        let summary = ends.get(&mut session, &plain).await.unwrap();
        assert_eq!((summary.written, summary.skipped), (1, 1));
        assert_eq!(fs::read_link(ends.host("work/link")).unwrap(), outside);
        assert!(fs::symlink_metadata(ends.host("work/plain/link")).is_err());

        // Sent again as it is.
        ends.record().forget().unwrap();
        ends.put(&mut session, &Scope::all()).await.unwrap();
        assert_eq!(fs::read_link(ends.container("work/link")).unwrap(), outside);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);

        // A link in the place of what is sent.
        fs::remove_dir_all(ends.container("work")).unwrap();
        symlink(&outside, ends.container("work")).unwrap();
        fs::write(ends.host("work/new"), "").unwrap();
        let error = ends.put(&mut session, &Scope::all()).await.unwrap_err();
        assert!(error.to_string().contains("/container//work/new: "), "{error}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    });
}

#[test]
fn directories_that_are_meant_remain_directories() {
    run(async {
        let (agent, ends) = (Agent::new(), Ends::new());
        let mut session = Session::new(&agent);
        fs::create_dir_all(ends.host("a/repo/x")).unwrap();
        ends.put(&mut session, &Scope::all()).await.unwrap();

        fs::remove_dir_all(ends.container("a/repo")).unwrap();
        let summary = ends.get(&mut session, &scope(&["a/repo"])).await.unwrap();
        assert_eq!(summary.removed, 1);
        assert_eq!(fs::read_dir(ends.host("a/repo")).unwrap().count(), 0);

        ends.put(&mut session, &Scope::all()).await.unwrap();
        fs::write(ends.host("a/repo/y"), "").unwrap();
        ends.put(&mut session, &Scope::all()).await.unwrap();
        fs::remove_dir_all(ends.container("a/repo")).unwrap();
        symlink("/etc", ends.container("a/repo")).unwrap();
        let summary = ends.get(&mut session, &scope(&["a/repo"])).await.unwrap();
        assert!(summary.unread.to_string().ends_with("a/repo: Not a directory"), "{summary:?}");
        assert!(ends.host("a/repo/y").exists());
    });
}

#[test]
fn set_id_bits_stay_in_the_container() {
    run(async {
        let (agent, ends) = (Agent::new(), Ends::new());
        let mut session = Session::new(&agent);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        fs::write(ends.host("own"), "").unwrap();
        set(&ends.host("own"), 0o4711);
        ends.put(&mut session, &Scope::all()).await.unwrap();
        assert_eq!(mode(&ends.container("own")), 0o4711);
        fs::write(ends.container("own"), "1").unwrap();
        set(&ends.container("own"), 0o6755);
        fs::write(ends.container("new"), "").unwrap();
        set(&ends.container("new"), 0o6755);
        fs::create_dir(ends.container("directory")).unwrap();
        set(&ends.container("directory"), 0o6555);
        ends.get(&mut session, &Scope::all()).await.unwrap();
        assert_eq!(mode(&ends.host("own")), 0o4755);
        assert_eq!(mode(&ends.host("new")), 0o755);
        assert_eq!(mode(&ends.host("directory")), 0o755);
        let summary = ends.put(&mut session, &Scope::all()).await.unwrap();
        assert_eq!(summary.written, 0);
    });
}

#[test]
fn what_is_no_file_is_counted() {
    run(async {
        let (agent, ends) = (Agent::new(), Ends::new());
        let mut session = Session::new(&agent);
        let _socket = std::os::unix::net::UnixListener::bind(ends.container("socket")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            ends.container("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        fs::write(ends.container("file"), "").unwrap();
        let summary = ends.get(&mut session, &Scope::all()).await.unwrap();
        assert_eq!((summary.entries, summary.written, summary.skipped), (1, 1, 2));
        assert_eq!(fs::read_dir(ends.host("")).unwrap().count(), 1);
    });
}

#[test]
fn containers_get_files_of_each_other() {
    run(async {
        let (agent, one, two) = (Agent::new(), Ends::new(), Ends::new());
        let mut random = fastrand::Rng::with_seed(7);
        grow(&one.container(""), &mut random, 3);
        let (mut a, mut b) = (Session::new(&agent), Session::new(&agent));
        let (root_a, root_b) = (one.container(""), two.container(""));
        let record = one.record();
        for forth in [true, false, true] {
            let (a, b) = (
                transfer::Place { session: &mut a, root: &root_a },
                transfer::Place { session: &mut b, root: &root_b },
            );
            let (from, to) = if forth { (a, b) } else { (b, a) };
            transfer(from, to, &Scope::all(), &record, LIMITS).await.unwrap();
            assert_eq!(snapshot(&root_a), snapshot(&root_b));
            change(if forth { &root_b } else { &root_a }, &mut random);
        }
    });
}

#[test]
fn files_are_listed_in_order_and_read_by_their_paths() {
    run(async {
        let (agent, ends) = (Agent::new(), Ends::new());
        let mut session = Session::new(&agent);
        for path in ["b/c", "b.c", "a", "b-"] {
            let path = ends.container(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "content").unwrap();
        }
        symlink("b/c", ends.container("link")).unwrap();
        let mut paths = Vec::new();
        let mut take = |entry: crate::sys::init::frames::files::Entry| {
            paths.push(String::from_utf8(entry.path).unwrap());
        };
        list(&mut session, &ends.container(""), &Scope::all(), LIMITS, &mut take).await.unwrap();
        assert_eq!(paths, ["a", "b", "b/c", "b-", "b.c", "link"]);

        let link = ends.container("link");
        assert_eq!(read(&mut session, &link, 7).await.unwrap().unwrap(), b"content");
        assert!(read(&mut session, &ends.container("x"), 7).await.unwrap().is_none());
        let error = read(&mut session, &link, 6).await.unwrap_err();
        assert!(chain(&error).ends_with("link: File too large"), "{error}");
        read(&mut session, &ends.container("b"), 7).await.unwrap_err();
    });
}

#[test]
fn too_much_is_refused_with_the_setting_that_says_so() {
    run(async {
        let (agent, ends) = (Agent::new(), Ends::new());
        let into = HostTree::open(&ends.host("")).unwrap();
        for name in 0..20 {
            fs::write(ends.container(&name.to_string()), "0123456789").unwrap();
        }
        let all = Scope::all();
        for (limits, message) in [
            (Limits { entries: 10, bytes: 1000 }, "more than 10 files"),
            (Limits { entries: 20, bytes: 199 }, "more than 199 bytes"),
        ] {
            ends.record().forget().unwrap();
            let mut session = Session::new(&agent);
            let (root, record) = (ends.container(""), ends.record());
            let error = get(&mut session, &root, &into, &all, &record, limits).await.unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
    });
}
