//! The hook directories of systems with various configurations.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::SystemRoot;

use super::{
    ConfiguredDirs, ConsumerSystem, DirectoriesError, DirsSource, read_configured, unread_dirs,
};
use crate::hooks::Consumer;
use crate::hooks::consumer::{BUILDAH, CRIO, NRI, PODMAN, PODMAN_4, PODMAN_5};

const USR: &str = "/usr/share/containers/oci/hooks.d";
const ETC: &str = "/etc/containers/oci/hooks.d";

/// A system in a temporary directory.
struct TestSystem {
    temp: tempfile::TempDir,
    user_id: u32,
    variables: BTreeMap<&'static str, OsString>,
}

impl TestSystem {
    fn new(user_id: u32) -> Self {
        let variables = [("HOME", "/home/u".into())].into();
        TestSystem { temp: tempfile::tempdir().unwrap(), user_id, variables }
    }

    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.temp.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Writes a containers.conf with a list of directories.
    fn engine(&self, path: &str, list: &str) -> PathBuf {
        self.write(path, &format!("[engine]\nhooks_dir = {list}\n"))
    }

    fn ask<T>(&self, ask: impl FnOnce(&ConsumerSystem<'_>) -> T) -> T {
        ask(&ConsumerSystem {
            root: SystemRoot::mounted_at(self.temp.path()),
            user_id: self.user_id,
            variable: &|name| self.variables.get(name).cloned(),
        })
    }

    fn read_configured(&self, consumer: &Consumer) -> Result<ConfiguredDirs, DirectoriesError> {
        self.ask(|system| read_configured(consumer, system))
    }

    #[track_caller]
    fn dirs(&self, consumer: &Consumer) -> Vec<String> {
        let dirs = self.read_configured(consumer).unwrap().dirs;
        dirs.into_iter().map(|dir| dir.into_os_string().into_string().unwrap()).collect()
    }

    /// Returns what sets the hook directories: a file and line, a variable or the default. Paths are
    /// relative to the root of the test system.
    fn deciding_line(&self, consumer: &Consumer) -> String {
        let root = self.temp.path().to_str().unwrap();
        self.read_configured(consumer).unwrap().source.to_string().replace(root, "")
    }
}

#[test]
fn podman_and_crio_read_one_directory_by_default() {
    for user_id in [0, 1000] {
        let machine = TestSystem::new(user_id);
        for consumer in [PODMAN, PODMAN_5, PODMAN_4, CRIO] {
            assert_eq!(machine.dirs(&consumer), [USR]);
            assert_eq!(machine.deciding_line(&consumer), "the built-in default");
        }
        assert_eq!(machine.dirs(&NRI), [USR, ETC]);
    }
    assert_eq!(TestSystem::new(0).dirs(&BUILDAH), [USR, ETC]);
    assert_eq!(TestSystem::new(1000).dirs(&BUILDAH), [""; 0]);
}

#[test]
fn later_files_of_podman_5_decide() {
    let mut machine = TestSystem::new(1000);
    let decided =
        |machine: &TestSystem| (machine.dirs(&PODMAN_5).concat(), machine.deciding_line(&PODMAN_5));
    let files = [
        "/usr/share/containers/containers.conf",
        "/etc/containers/containers.conf",
        "/etc/containers/containers.conf.d/10-a.conf",
        "/etc/containers/containers.conf.d/9-b.conf",
        "/etc/containers/containers.rootless.conf",
        "/etc/containers/containers.rootless.conf.d/a.conf",
        "/etc/containers/containers.rootless.conf.d/1000/a.conf",
        "/home/u/.config/containers/containers.conf",
        "/home/u/.config/containers/containers.conf.d/a.conf",
    ];
    for (at, file) in files.iter().enumerate() {
        machine.engine(file, &format!("[\"/{at}\"]"));
        assert_eq!(decided(&machine), (format!("/{at}"), format!("hooks_dir in {file}:2")));
    }
    // Neither of these is read.
    machine.engine("/etc/containers/containers.conf.d/z", "[\"/z\"]");
    machine.engine("/home/u/.config/containers/containers.conf.d/z.conf/a.conf", "[\"/z\"]");
    assert_eq!(decided(&machine).0, "/8");
    machine.engine("/x/containers/containers.conf", "[\"/xdg\"]");
    machine.variables.insert("XDG_CONFIG_HOME", "/x".into());
    assert_eq!(decided(&machine).0, "/xdg");
    // Root does not read the files for rootless podman, but since podman 5 the file in its home
    // directory.
    machine.user_id = 0;
    assert_eq!(
        (machine.dirs(&PODMAN_4).concat(), decided(&machine).0),
        ("/3".into(), "/xdg".into())
    );
}

#[test]
fn podman_variables_name_the_only_or_the_last_file() {
    let mut machine = TestSystem::new(0);
    machine.engine("/etc/containers/containers.conf", "[\"/etc\"]");
    machine.engine("/only.conf", "[\"/only\"]");
    machine.engine("/last.conf", "[\"/last\"]");
    machine.variables.insert("CONTAINERS_CONF", "/only.conf".into());
    assert_eq!(machine.dirs(&PODMAN_5), ["/only"]);
    machine.write("/only.conf", "[containers]\n");
    assert_eq!(machine.dirs(&PODMAN_5), [USR]);
    machine.variables.insert("CONTAINERS_CONF_OVERRIDE", "/last.conf".into());
    assert_eq!(machine.dirs(&PODMAN_5), ["/last"]);
    machine.variables.insert("CONTAINERS_CONF_OVERRIDE", "/none".into());
    assert_eq!(machine.dirs(&PODMAN_5), [USR]);
    machine.variables.insert("CONTAINERS_CONF", "".into());
    assert_eq!(machine.dirs(&PODMAN_5), ["/etc"]);
    machine.variables.insert("CONTAINERS_CONF", "/none".into());
    let error = machine.read_configured(&PODMAN_5).unwrap_err().to_string();
    assert_eq!(error, "CONTAINERS_CONF names /none, which does not exist");
}

#[test]
fn lists_are_replaced_unless_append_is_set() {
    let machine = TestSystem::new(0);
    let drop_in = |name: &str, list: &str| {
        machine.engine(&format!("/etc/containers/containers.conf.d/{name}.conf"), list);
        machine.dirs(&PODMAN_5)
    };
    assert_eq!(drop_in("1", "[\"/a\", {append=true}]"), [USR, "/a"]);
    // `append` applies to later files until one overrides it.
    assert_eq!(drop_in("2", "[\"/b\"]"), [USR, "/a", "/b"]);
    let both = "hooks_dir in /etc/containers/containers.conf.d/1.conf:2, /etc/containers/containers.conf.d/2.conf:2";
    assert_eq!(machine.deciding_line(&PODMAN_5), both);
    assert_eq!(drop_in("3", "[\"/c\", {append=false}]"), ["/c"]);
    assert_eq!(drop_in("4", "[\"/d\"]"), ["/d"]);
}

#[test]
fn an_empty_list_means_none_to_podman_4_and_both_to_root_since_podman_5() {
    let mut machine = TestSystem::new(0);
    machine.engine("/etc/containers/containers.conf", "[]");
    assert_eq!(machine.dirs(&PODMAN_4), [""; 0]);
    assert_eq!(machine.dirs(&PODMAN_5), [USR, ETC]);
    let source = machine.read_configured(&PODMAN_5).unwrap().source;
    assert!(matches!(source, DirsSource::Implicit(_)), "{source}");
    assert_eq!(machine.dirs(&PODMAN), [USR, ETC]);
    machine.user_id = 1000;
    assert_eq!(machine.dirs(&PODMAN_5), [""; 0]);
    assert_eq!(machine.dirs(&PODMAN), [""; 0]);
}

/// Files with their directories, and the directory that root and the user 1000 read.
type Podman6Case<'a> = (&'a str, &'a [(&'a str, &'a str)], [&'a str; 2]);

#[test]
fn podman_6_reads_the_first_main_file_and_drop_ins_by_name() {
    let cases: [Podman6Case<'_>; 12] = [
        ("nothing", &[], [USR, USR]),
        ("one file", &[("/usr/share/containers/containers.conf", "/usr")], ["/usr", "/usr"]),
        (
            "the file of /etc hides that of /usr/share, which sets nothing here",
            &[
                ("/usr/share/containers/containers.conf", "/usr"),
                ("/etc/containers/containers.conf", ""),
            ],
            [USR, USR],
        ),
        (
            "the file of the user hides all others, and root has one too",
            &[
                ("/usr/share/containers/containers.conf", "/usr"),
                ("/etc/containers/containers.conf", "/etc"),
                ("/home/u/.config/containers/containers.conf", "/home"),
            ],
            ["/home", "/home"],
        ),
        (
            "a main file of rootless podman is not read",
            &[("/etc/containers/containers.rootless.conf", "/rootless")],
            [USR, USR],
        ),
        (
            "a drop-in of /usr/share overrides the main file of the user",
            &[
                ("/home/u/.config/containers/containers.conf", "/home"),
                ("/usr/share/containers/containers.conf.d/a.conf", "/usr-a"),
            ],
            ["/usr-a", "/usr-a"],
        ),
        (
            "the name decides, not the directory",
            &[
                ("/usr/share/containers/containers.conf.d/20.conf", "/usr-20"),
                ("/etc/containers/containers.conf.d/10.conf", "/etc-10"),
                ("/home/u/.config/containers/containers.conf.d/05.conf", "/home-05"),
            ],
            ["/usr-20", "/usr-20"],
        ),
        (
            "a drop-in masks those of its name in earlier directories",
            &[
                ("/usr/share/containers/containers.conf.d/20.conf", "/usr-20"),
                ("/usr/share/containers/containers.conf.d/10.conf", "/usr-10"),
                ("/etc/containers/containers.conf.d/20.conf", ""),
            ],
            ["/usr-10", "/usr-10"],
        ),
        (
            "root and other users have drop-ins of their own",
            &[
                ("/usr/share/containers/containers.rootful.conf.d/1.conf", "/usr-rootful"),
                ("/usr/share/containers/containers.rootless.conf.d/1.conf", "/usr-rootless"),
            ],
            ["/usr-rootful", "/usr-rootless"],
        ),
        (
            "those mask the ones for all, and those of one user mask both",
            &[
                ("/etc/containers/containers.conf.d/1.conf", "/etc"),
                ("/etc/containers/containers.rootful.conf.d/1.conf", "/etc-rootful"),
                ("/etc/containers/containers.rootless.conf.d/1.conf", "/etc-rootless"),
                ("/etc/containers/containers.rootless.conf.d/1000/1.conf", "/etc-1000"),
                ("/etc/containers/containers.rootless.conf.d/1001/1.conf", "/etc-1001"),
                ("/usr/share/containers/containers.rootless.conf.d/1000/1.conf", "/usr-1000"),
            ],
            ["/etc-rootful", "/etc-1000"],
        ),
        (
            "the directory of the user has none for rootless podman",
            &[
                ("/home/u/.config/containers/containers.conf.d/1.conf", "/home"),
                ("/home/u/.config/containers/containers.rootless.conf.d/2.conf", "/no"),
                ("/home/u/.config/containers/containers.rootful.conf.d/2.conf", "/no"),
            ],
            ["/home", "/home"],
        ),
        (
            "other names and directories are no drop-ins",
            &[
                ("/etc/containers/containers.conf.d/1.conf", "/1"),
                ("/etc/containers/containers.conf.d/2", "/2"),
                ("/etc/containers/containers.conf.d/3.conf/a.conf", "/3"),
            ],
            ["/1", "/1"],
        ),
    ];
    for (name, files, expected) in cases {
        for (user_id, expected) in [0, 1000].into_iter().zip(expected) {
            let machine = TestSystem::new(user_id);
            for (path, dir) in files {
                match *dir {
                    "" => machine.write(path, "[containers]\n"),
                    dir => machine.engine(path, &format!("[{dir:?}]")),
                };
            }
            assert_eq!(machine.dirs(&PODMAN), [expected], "{name}, user {user_id}");
        }
    }
}

#[test]
fn a_link_among_drop_ins_of_podman_6_is_not_read_and_masks_nothing() {
    let machine = TestSystem::new(0);
    machine.engine("/usr/share/containers/containers.conf.d/a.conf", "[\"/a\"]");
    machine.engine("/elsewhere.conf", "[\"/link\"]");
    let dir = machine.temp.path().join("etc/containers/containers.conf.d");
    fs::create_dir_all(&dir).unwrap();
    std::os::unix::fs::symlink("/elsewhere.conf", dir.join("a.conf")).unwrap();
    assert_eq!(machine.dirs(&PODMAN), ["/a"]);
    assert_eq!(machine.dirs(&PODMAN_5), ["/link"]);
}

#[test]
fn variables_of_podman_6_must_name_files() {
    let mut machine = TestSystem::new(0);
    machine.engine("/etc/containers/containers.conf.d/a.conf", "[\"/etc\"]");
    machine.engine("/only.conf", "[\"/only\"]");
    machine.engine("/last.conf", "[\"/last\"]");
    machine.variables.insert("CONTAINERS_CONF", "/only.conf".into());
    assert_eq!(machine.dirs(&PODMAN), ["/only"]);
    machine.variables.insert("CONTAINERS_CONF_OVERRIDE", "/last.conf".into());
    assert_eq!(machine.dirs(&PODMAN), ["/last"]);
    for variable in ["CONTAINERS_CONF_OVERRIDE", "CONTAINERS_CONF"] {
        machine.variables.insert(variable, "/none".into());
        let error = machine.read_configured(&PODMAN).unwrap_err().to_string();
        assert_eq!(error, format!("{variable} names /none, which does not exist"));
    }
}

#[test]
fn a_list_of_podman_6_is_extended_in_the_order_of_names() {
    let machine = TestSystem::new(0);
    machine.engine("/etc/containers/containers.conf.d/2.conf", "[\"/b\"]");
    machine.engine("/usr/share/containers/containers.conf.d/3.conf", "[\"/c\", {append=false}]");
    machine.engine("/usr/share/containers/containers.conf.d/1.conf", "[\"/a\", {append=true}]");
    assert_eq!(machine.dirs(&PODMAN), ["/c"]);
    machine.write("/etc/containers/containers.conf.d/3.conf", "");
    assert_eq!(machine.dirs(&PODMAN), [USR, "/a", "/b"]);
}

#[test]
fn crio_reads_its_drop_in_files_in_order() {
    let mut machine = TestSystem::new(0);
    let write = |machine: &TestSystem, path: &str, dir: &str| {
        machine.write(path, &format!("[crio.runtime]\n\nhooks_dir = [\"{dir}\"]\n"));
        machine.dirs(&CRIO)
    };
    assert_eq!(write(&machine, "/etc/crio/crio.conf", "/main"), ["/main"]);
    assert_eq!(write(&machine, "/etc/crio/crio.conf.d/10-a", "/a"), ["/a"]);
    assert_eq!(write(&machine, "/etc/crio/crio.conf.d/20/x", "/deep"), ["/deep"]);
    assert_eq!(write(&machine, "/etc/crio/crio.conf.d/15-b.conf", "/b"), ["/deep"]);
    assert_eq!(machine.deciding_line(&CRIO), "hooks_dir in /etc/crio/crio.conf.d/20/x:3");
    machine.variables.insert("CONTAINER_CONFIG_DIR", "/other".into());
    assert_eq!(machine.dirs(&CRIO), ["/main"]);
    machine.variables.insert("CONTAINER_HOOKS_DIR", "/v, /w".into());
    assert_eq!(machine.dirs(&CRIO), ["/v", "/w"]);
    assert_eq!(machine.deciding_line(&CRIO), "the variable CONTAINER_HOOKS_DIR");
}

#[test]
fn hook_files_elsewhere_are_reported_with_a_fix() {
    let mut machine = TestSystem::new(0);
    let found = |machine: &TestSystem, consumer: &Consumer| {
        machine.ask(|system| {
            let configured = read_configured(consumer, system).unwrap();
            let unread = unread_dirs(&configured.dirs, system);
            let advice = |dir: &Path| configured.to_read(dir, consumer, system);
            let found = unread.iter().map(|dir| {
                let root = machine.temp.path().to_str().unwrap();
                (dir.path.display().to_string(), advice(&dir.path).replace(root, ""))
            });
            found.collect::<Vec<_>>()
        })
    };
    machine.write(&format!("{ETC}/README"), "");
    assert_eq!(found(&machine, &PODMAN_5), []);
    machine.write(&format!("{ETC}/a.json"), "{");
    let both = format!("write hooks_dir = [\"{USR}\", \"{ETC}\"]");
    let advice =
        format!("in /etc/containers/containers.conf.d/zz-hooks.conf, under [engine], {both}");
    assert_eq!(found(&machine, &PODMAN_5), [(ETC.to_owned(), advice)]);
    let advice = format!("in /etc/crio/crio.conf.d/10-hooks.conf, under [crio.runtime], {both}");
    assert_eq!(found(&machine, &CRIO), [(ETC.to_owned(), advice)]);
    assert_eq!(found(&machine, &NRI), []);
    machine.engine("/etc/containers/containers.conf", "[\"/a\"]");
    let list = format!("write hooks_dir = [\"/a\", \"{ETC}\"]");
    let advice = format!("in /etc/containers/containers.conf, line 2, {list}");
    assert_eq!(found(&machine, &PODMAN_5), [(ETC.to_owned(), advice)]);
    // Other users do not edit root's files.
    machine.user_id = 1000;
    let own = "/home/u/.config/containers/containers.conf.d/zz-hooks.conf";
    let advice = format!("in {own}, under [engine], {list}");
    assert_eq!(found(&machine, &PODMAN_5), [(ETC.to_owned(), advice)]);
    machine.engine("/etc/containers/containers.conf", &format!("[\"{ETC}/\"]"));
    assert_eq!(found(&machine, &PODMAN_5), []);
    for dir in [".config", ".local/share"] {
        let dir = format!("/home/u/{dir}/containers/oci/hooks.d");
        let file = machine.write(&format!("{dir}/a.json"), "{");
        assert_eq!(found(&machine, &PODMAN_5)[0].0, dir);
        fs::remove_file(file).unwrap();
    }
}
