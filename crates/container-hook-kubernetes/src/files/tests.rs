//! Exchanges with the real agent, a process with pipes, and with hostile ones.

mod hostile;
mod lost;
mod many;
mod trees;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use oci_hooks_init::frames::files::{DATA_BYTES, FileScope};
use trees::{change, grow, snapshot};

use super::error::ExchangeSummary;
use super::get::get;
use super::host::HostTree;
use super::put::upload_tree;
use super::record::ExchangeRecord;
use super::transfer::transfer;
use super::*;
use crate::agent::AgentSession;
use crate::agent::testing::{TestAgent, block_on};

const LIMITS: ExchangeLimits = ExchangeLimits { entries: 1_000_000, bytes: 1 << 30 };

/// Directories of the runner, of the container, and of the record.
struct ExchangeDirs {
    dir: tempfile::TempDir,
}

impl ExchangeDirs {
    fn new() -> Self {
        ExchangeDirs::of(tempfile::tempdir().unwrap())
    }

    /// Returns directories in memory, so that durations do not depend on a disk.
    fn in_memory() -> Self {
        ExchangeDirs::of(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn of(dir: tempfile::TempDir) -> Self {
        for name in ["host", "container", "state"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        ExchangeDirs { dir }
    }

    fn host(&self, path: &str) -> PathBuf {
        self.dir.path().join("host").join(path)
    }

    fn container(&self, path: &str) -> PathBuf {
        self.dir.path().join("container").join(path)
    }

    fn record(&self) -> ExchangeRecord {
        ExchangeRecord::new(self.dir.path().join("state/record"))
    }

    async fn upload_work(
        &self,
        session: &mut AgentSession<'_>,
        scope: &FileScope,
    ) -> Result<ExchangeSummary, FilesError> {
        let from = HostTree::open(&self.host("")).unwrap();
        upload_tree(session, &from, &self.container(""), scope, &self.record()).await
    }

    async fn get(
        &self,
        session: &mut AgentSession<'_>,
        scope: &FileScope,
    ) -> Result<ExchangeSummary, FilesError> {
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

/// Runs a test with a session of a new agent, and new directories.
fn with_agent(test: impl AsyncFnOnce(&mut AgentSession<'_>, ExchangeDirs)) {
    let agent = TestAgent::start();
    block_on(test(&mut AgentSession::new(&agent), ExchangeDirs::new()));
}

fn scope(include: &[&str]) -> FileScope {
    let include = include.iter().map(|path| path.as_bytes().to_vec()).collect();
    FileScope { include, ..FileScope::default() }
}

#[test]
fn trees_are_identical_after_exchange_in_either_direction() {
    block_on(async {
        let agent = TestAgent::start();
        for seed in 0..12 {
            let (ends, mut random) = (ExchangeDirs::in_memory(), fastrand::Rng::with_seed(seed));
            let mut session = AgentSession::new(&agent);
            grow(&ends.host(""), &mut random, 3);
            let summary = ends.upload_work(&mut session, &FileScope::all()).await.unwrap();
            assert_eq!(summary.written, snapshot(&ends.host("")).len() as u64);
            ends.assert_same();
            for _ in 0..3 {
                change(&ends.container(""), &mut random);
                ends.get(&mut session, &FileScope::all()).await.unwrap();
                ends.assert_same();
                change(&ends.host(""), &mut random);
                ends.upload_work(&mut session, &FileScope::all()).await.unwrap();
                ends.assert_same();
            }
            // No changes since the last exchange.
            for summary in [
                ends.upload_work(&mut session, &FileScope::all()).await.unwrap(),
                ends.get(&mut session, &FileScope::all()).await.unwrap(),
            ] {
                assert_eq!((summary.written, summary.removed), (0, 0));
            }
        }
    });
}

#[test]
fn changes_of_the_other_end_are_kept() {
    with_agent(async |session, ends| {
        for name in ["both", "gone", "container", "host"] {
            fs::write(ends.host(name), "1").unwrap();
        }
        ends.upload_work(session, &FileScope::all()).await.unwrap();
        fs::write(ends.container("container"), "of the container").unwrap();
        fs::write(ends.container("new in container"), "").unwrap();
        fs::write(ends.host("host"), "of the host").unwrap();
        fs::write(ends.host("new on host"), "").unwrap();
        fs::remove_file(ends.host("gone")).unwrap();

        let summary = ends.upload_work(session, &FileScope::all()).await.unwrap();
        assert_eq!((summary.written, summary.removed), (2, 1));
        assert_eq!(fs::read(ends.container("container")).unwrap(), b"of the container");
        assert_eq!(fs::read(ends.container("host")).unwrap(), b"of the host");
        assert!(ends.container("new in container").exists());
        assert!(!ends.container("gone").exists());

        fs::write(ends.host("host"), "again").unwrap();
        fs::remove_file(ends.container("both")).unwrap();
        let summary = ends.get(session, &FileScope::all()).await.unwrap();
        assert_eq!((summary.written, summary.removed), (2, 1));
        assert_eq!(fs::read(ends.host("host")).unwrap(), b"again");
        assert!(ends.host("new on host").exists());
        assert!(!ends.host("both").exists());
        ends.upload_work(session, &FileScope::all()).await.unwrap();
        ends.assert_same();
    });
}

#[test]
fn only_files_within_the_scope_are_exchanged() {
    with_agent(async |session, ends| {
        for path in ["a/b/c", "a/b2", "a.b", "tool/x", "z"] {
            let path = ends.host(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "1").unwrap();
        }
        let exclude = vec![b"tool".to_vec(), b"a/b2".to_vec()];
        let most = FileScope { exclude, ..FileScope::all() };
        ends.upload_work(session, &most).await.unwrap();
        for (path, is_there) in [("a/b/c", true), ("a/b2", false), ("a.b", true), ("tool", false)] {
            assert_eq!(ends.container(path).exists(), is_there, "{path}");
        }
        for path in ["a/b/c", "a.b", "z"] {
            fs::write(ends.container(path), "22").unwrap();
        }
        fs::remove_file(ends.container("z")).unwrap();
        let summary = ends.get(session, &scope(&["a/b"])).await.unwrap();
        assert_eq!((summary.written, summary.removed), (1, 0));
        // Changes outside of the scope are still found.
        let summary = ends.get(session, &most).await.unwrap();
        assert_eq!((summary.written, summary.removed), (1, 1));
        assert_eq!(fs::read(ends.host("a.b")).unwrap(), b"22");
    });
}

#[test]
fn links_are_copied_and_never_followed() {
    with_agent(async |session, ends| {
        let outside = ends.dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "secret").unwrap();
        fs::create_dir_all(ends.host("work/plain")).unwrap();
        ends.upload_work(session, &FileScope::all()).await.unwrap();

        symlink(&outside, ends.container("work/link")).unwrap();
        symlink("/nowhere", ends.container("work/plain/link")).unwrap();
        let without_links = vec![b"work/plain".to_vec()];
        let plain = FileScope { without_links, ..FileScope::all() };
        let summary = ends.get(session, &plain).await.unwrap();
        assert_eq!((summary.written, summary.skipped), (1, 1));
        assert_eq!(fs::read_link(ends.host("work/link")).unwrap(), outside);
        assert!(fs::symlink_metadata(ends.host("work/plain/link")).is_err());

        // The link is uploaded as a link.
        ends.record().forget().unwrap();
        ends.upload_work(session, &FileScope::all()).await.unwrap();
        assert_eq!(fs::read_link(ends.container("work/link")).unwrap(), outside);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);

        // A link replaces the directory to upload to.
        fs::remove_dir_all(ends.container("work")).unwrap();
        symlink(&outside, ends.container("work")).unwrap();
        fs::write(ends.host("work/new"), "").unwrap();
        let error = ends.upload_work(session, &FileScope::all()).await.unwrap_err();
        assert!(error.to_string().contains("/container//work/new: "), "{error}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    });
}

#[test]
fn scope_directories_stay_directories() {
    with_agent(async |session, ends| {
        fs::create_dir_all(ends.host("a/repo/x")).unwrap();
        ends.upload_work(session, &FileScope::all()).await.unwrap();

        fs::remove_dir_all(ends.container("a/repo")).unwrap();
        let summary = ends.get(session, &scope(&["a/repo"])).await.unwrap();
        assert_eq!(summary.removed, 1);
        assert_eq!(fs::read_dir(ends.host("a/repo")).unwrap().count(), 0);

        ends.upload_work(session, &FileScope::all()).await.unwrap();
        fs::write(ends.host("a/repo/y"), "").unwrap();
        ends.upload_work(session, &FileScope::all()).await.unwrap();
        fs::remove_dir_all(ends.container("a/repo")).unwrap();
        symlink("/etc", ends.container("a/repo")).unwrap();
        let summary = ends.get(session, &scope(&["a/repo"])).await.unwrap();
        assert!(summary.unread.to_string().ends_with("a/repo: Not a directory"), "{summary:?}");
        assert!(ends.host("a/repo/y").exists());
    });
}

#[test]
fn modes_of_scope_directories_stay_in_the_container() {
    with_agent(async |session, ends| {
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        let open = |path: &Path| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        };
        let commands = ends.host("temp/commands");
        fs::create_dir_all(&commands).unwrap();
        fs::set_permissions(&commands, fs::Permissions::from_mode(0o750)).unwrap();
        ends.upload_work(session, &FileScope::all()).await.unwrap();
        // As if another user had created them, for every user of the image.
        fs::create_dir_all(ends.container("temp/home/inner")).unwrap();
        for path in ["temp/commands", "temp/home", "temp/home/inner"] {
            open(&ends.container(path));
        }
        let included = scope(&["temp/commands", "temp/home"]);
        for written in [2, 0] {
            let summary = ends.get(session, &included).await.unwrap();
            assert_eq!(summary.written, written);
            assert_eq!(mode(&commands), 0o750);
            assert_eq!(mode(&ends.host("temp/home")), 0o755);
            assert_eq!(mode(&ends.host("temp/home/inner")), 0o777);
        }
        let summary = ends.upload_work(session, &FileScope::all()).await.unwrap();
        assert_eq!(summary.written, 0);
        assert_eq!(mode(&ends.container("temp/commands")), 0o777);
        assert_eq!(mode(&ends.container("temp/home")), 0o777);
    });
}

#[test]
fn set_id_bits_stay_in_the_container() {
    with_agent(async |session, ends| {
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        fs::write(ends.host("own"), "").unwrap();
        set(&ends.host("own"), 0o4711);
        ends.upload_work(session, &FileScope::all()).await.unwrap();
        assert_eq!(mode(&ends.container("own")), 0o4711);
        fs::write(ends.container("own"), "1").unwrap();
        set(&ends.container("own"), 0o6755);
        fs::write(ends.container("new"), "").unwrap();
        set(&ends.container("new"), 0o6755);
        fs::create_dir(ends.container("directory")).unwrap();
        set(&ends.container("directory"), 0o6555);
        ends.get(session, &FileScope::all()).await.unwrap();
        assert_eq!(mode(&ends.host("own")), 0o4755);
        assert_eq!(mode(&ends.host("new")), 0o755);
        assert_eq!(mode(&ends.host("directory")), 0o755);
        let summary = ends.upload_work(session, &FileScope::all()).await.unwrap();
        assert_eq!(summary.written, 0);
    });
}

#[test]
fn special_files_are_skipped_and_counted() {
    with_agent(async |session, ends| {
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
        let summary = ends.get(session, &FileScope::all()).await.unwrap();
        assert_eq!((summary.written, summary.skipped), (1, 2));
        assert_eq!(fs::read_dir(ends.host("")).unwrap().count(), 1);
    });
}

#[test]
fn containers_get_each_others_files() {
    block_on(async {
        let (agent, one, two) = (TestAgent::start(), ExchangeDirs::new(), ExchangeDirs::new());
        let mut random = fastrand::Rng::with_seed(7);
        grow(&one.container(""), &mut random, 3);
        let (mut a, mut b) = (AgentSession::new(&agent), AgentSession::new(&agent));
        let (root_a, root_b) = (one.container(""), two.container(""));
        let record = one.record();
        for forth in [true, false, true] {
            let (a, b) = (
                transfer::ContainerDir { session: &mut a, root: &root_a },
                transfer::ContainerDir { session: &mut b, root: &root_b },
            );
            let (from, to) = if forth { (a, b) } else { (b, a) };
            transfer(from, to, &FileScope::all(), &record, LIMITS).await.unwrap();
            assert_eq!(snapshot(&root_a), snapshot(&root_b));
            change(if forth { &root_b } else { &root_a }, &mut random);
        }
    });
}

#[test]
fn files_are_read_by_path() {
    with_agent(async |session, ends| {
        fs::create_dir(ends.container("b")).unwrap();
        fs::write(ends.container("b/c"), "content").unwrap();
        symlink("b/c", ends.container("link")).unwrap();
        let link = ends.container("link");
        assert_eq!(read(session, &link).await.unwrap().unwrap(), b"content");
        fs::write(&link, vec![b'x'; DATA_BYTES]).unwrap();
        assert_eq!(read(session, &link).await.unwrap().unwrap().len(), DATA_BYTES);
        // Files that are missing, too large, no regular files, or cannot be opened. (Root can open files of any mode.)
        fs::write(&link, vec![b'x'; DATA_BYTES + 1]).unwrap();
        symlink("loop", ends.container("loop")).unwrap();
        for name in ["x", "link", "b", "loop"] {
            let content = read(session, &ends.container(name)).await.unwrap();
            assert!(content.is_none(), "{name}");
        }
    });
}

#[test]
fn exceeded_limits_name_their_setting() {
    block_on(async {
        let (agent, ends) = (TestAgent::start(), ExchangeDirs::new());
        let into = HostTree::open(&ends.host("")).unwrap();
        for name in 0..20 {
            fs::write(ends.container(&name.to_string()), "0123456789").unwrap();
        }
        let all = FileScope::all();
        for (limits, message) in [
            (ExchangeLimits { entries: 10, bytes: 1000 }, "more than 10 files"),
            (ExchangeLimits { entries: 20, bytes: 199 }, "more than 199 bytes"),
        ] {
            ends.record().forget().unwrap();
            let mut session = AgentSession::new(&agent);
            let (root, record) = (ends.container(""), ends.record());
            let error = get(&mut session, &root, &into, &all, &record, limits).await.unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
    });
}
