//! Systems with various configurations, and what is read on them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::{ConfiguredDirs, DirectoriesError, DirsSource, System, configured, unread};
use crate::hooks::Consumer;
use crate::hooks::consumer::{BUILDAH, CRIO, NRI, PODMAN, PODMAN_4};
use crate::sys::fs::SystemRoot;

const USR: &str = "/usr/share/containers/oci/hooks.d";
const ETC: &str = "/etc/containers/oci/hooks.d";

/// A system in a temporary directory.
struct Machine {
    temp: tempfile::TempDir,
    user_id: u32,
    variables: BTreeMap<&'static str, OsString>,
}

impl Machine {
    fn new(user_id: u32) -> Self {
        let variables = [("HOME", "/home/u".into())].into();
        Machine { temp: tempfile::tempdir().unwrap(), user_id, variables }
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

    fn ask<T>(&self, ask: impl FnOnce(&System<'_>) -> T) -> T {
        ask(&System {
            root: SystemRoot::mounted_at(self.temp.path()),
            user_id: self.user_id,
            variable: &|name| self.variables.get(name).cloned(),
        })
    }

    fn configured(&self, consumer: &Consumer) -> Result<ConfiguredDirs, DirectoriesError> {
        self.ask(|system| configured(consumer, system))
    }

    #[track_caller]
    fn dirs(&self, consumer: &Consumer) -> Vec<String> {
        let dirs = self.configured(consumer).unwrap().dirs;
        dirs.into_iter().map(|dir| dir.into_os_string().into_string().unwrap()).collect()
    }

    /// Returns the file and line that decided, as seen in the system.
    fn decided(&self, consumer: &Consumer) -> String {
        let root = self.temp.path().to_str().unwrap();
        self.configured(consumer).unwrap().source.to_string().replace(root, "")
    }
}

#[test]
fn without_a_setting_podman_and_crio_read_one_directory() {
    for user_id in [0, 1000] {
        let machine = Machine::new(user_id);
        for consumer in [PODMAN, PODMAN_4, CRIO] {
            assert_eq!(machine.dirs(&consumer), [USR]);
            assert_eq!(machine.decided(&consumer), "the built-in default");
        }
        assert_eq!(machine.dirs(&NRI), [USR, ETC]);
    }
    assert_eq!(Machine::new(0).dirs(&BUILDAH), [USR, ETC]);
    assert_eq!(Machine::new(1000).dirs(&BUILDAH), [""; 0]);
}

#[test]
fn later_files_of_podman_decide() {
    let mut machine = Machine::new(1000);
    let decided = |machine: &Machine| (machine.dirs(&PODMAN).concat(), machine.decided(&PODMAN));
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
    // Root reads no file for rootless podman, and its own since podman 5.
    machine.user_id = 0;
    assert_eq!(
        (machine.dirs(&PODMAN_4).concat(), decided(&machine).0),
        ("/3".into(), "/xdg".into())
    );
}

#[test]
fn variables_of_podman_name_the_only_file_and_the_last_one() {
    let mut machine = Machine::new(0);
    machine.engine("/etc/containers/containers.conf", "[\"/etc\"]");
    machine.engine("/only.conf", "[\"/only\"]");
    machine.engine("/last.conf", "[\"/last\"]");
    machine.variables.insert("CONTAINERS_CONF", "/only.conf".into());
    assert_eq!(machine.dirs(&PODMAN), ["/only"]);
    machine.write("/only.conf", "[containers]\n");
    assert_eq!(machine.dirs(&PODMAN), [USR]);
    machine.variables.insert("CONTAINERS_CONF_OVERRIDE", "/last.conf".into());
    assert_eq!(machine.dirs(&PODMAN), ["/last"]);
    machine.variables.insert("CONTAINERS_CONF_OVERRIDE", "/none".into());
    assert_eq!(machine.dirs(&PODMAN), [USR]);
    machine.variables.insert("CONTAINERS_CONF", "".into());
    assert_eq!(machine.dirs(&PODMAN), ["/etc"]);
    machine.variables.insert("CONTAINERS_CONF", "/none".into());
    let error = machine.configured(&PODMAN).unwrap_err().to_string();
    assert_eq!(error, "CONTAINERS_CONF names /none, which does not exist");
}

#[test]
fn lists_replace_unless_one_says_append() {
    let machine = Machine::new(0);
    let drop_in = |name: &str, list: &str| {
        machine.engine(&format!("/etc/containers/containers.conf.d/{name}.conf"), list);
        machine.dirs(&PODMAN)
    };
    assert_eq!(drop_in("1", "[\"/a\", {append=true}]"), [USR, "/a"]);
    // It goes for later files until one says otherwise.
    assert_eq!(drop_in("2", "[\"/b\"]"), [USR, "/a", "/b"]);
    let both = "hooks_dir in /etc/containers/containers.conf.d/1.conf:2, /etc/containers/containers.conf.d/2.conf:2";
    assert_eq!(machine.decided(&PODMAN), both);
    assert_eq!(drop_in("3", "[\"/c\", {append=false}]"), ["/c"]);
    assert_eq!(drop_in("4", "[\"/d\"]"), ["/d"]);
}

#[test]
fn an_empty_list_means_none_to_podman_4_and_both_to_root_of_podman_5() {
    let mut machine = Machine::new(0);
    machine.engine("/etc/containers/containers.conf", "[]");
    assert_eq!(machine.dirs(&PODMAN_4), [""; 0]);
    assert_eq!(machine.dirs(&PODMAN), [USR, ETC]);
    let source = machine.configured(&PODMAN).unwrap().source;
    assert!(matches!(source, DirsSource::Implicit(_)), "{source}");
    machine.user_id = 1000;
    assert_eq!(machine.dirs(&PODMAN), [""; 0]);
}

#[test]
fn crio_reads_every_file_below_its_directory_in_order() {
    let mut machine = Machine::new(0);
    let write = |machine: &Machine, path: &str, dir: &str| {
        machine.write(path, &format!("[crio.runtime]\n\nhooks_dir = [\"{dir}\"]\n"));
        machine.dirs(&CRIO)
    };
    assert_eq!(write(&machine, "/etc/crio/crio.conf", "/main"), ["/main"]);
    assert_eq!(write(&machine, "/etc/crio/crio.conf.d/10-a", "/a"), ["/a"]);
    assert_eq!(write(&machine, "/etc/crio/crio.conf.d/20/x", "/deep"), ["/deep"]);
    assert_eq!(write(&machine, "/etc/crio/crio.conf.d/15-b.conf", "/b"), ["/deep"]);
    assert_eq!(machine.decided(&CRIO), "hooks_dir in /etc/crio/crio.conf.d/20/x:3");
    machine.variables.insert("CONTAINER_CONFIG_DIR", "/other".into());
    assert_eq!(machine.dirs(&CRIO), ["/main"]);
    machine.variables.insert("CONTAINER_HOOKS_DIR", "/v, /w".into());
    assert_eq!(machine.dirs(&CRIO), ["/v", "/w"]);
    assert_eq!(machine.decided(&CRIO), "the variable CONTAINER_HOOKS_DIR");
}

#[test]
fn hook_files_elsewhere_are_found_with_what_to_do() {
    let mut machine = Machine::new(0);
    let found = |machine: &Machine, consumer: &Consumer| {
        machine.ask(|system| {
            let configured = configured(consumer, system).unwrap();
            let unread = unread(&configured.dirs, system);
            let advice = |dir: &Path| configured.to_read(dir, consumer, system);
            let found = unread.iter().map(|dir| {
                let root = machine.temp.path().to_str().unwrap();
                (dir.path.display().to_string(), advice(&dir.path).replace(root, ""))
            });
            found.collect::<Vec<_>>()
        })
    };
    machine.write(&format!("{ETC}/README"), "");
    assert_eq!(found(&machine, &PODMAN), []);
    machine.write(&format!("{ETC}/a.json"), "{");
    let both = format!("write hooks_dir = [\"{USR}\", \"{ETC}\"]");
    let advice = format!("in /etc/containers/containers.conf, under [engine], {both}");
    assert_eq!(found(&machine, &PODMAN), [(ETC.to_owned(), advice)]);
    let advice = format!("in /etc/crio/crio.conf.d/10-hooks.conf, under [crio.runtime], {both}");
    assert_eq!(found(&machine, &CRIO), [(ETC.to_owned(), advice)]);
    assert_eq!(found(&machine, &NRI), []);
    machine.engine("/etc/containers/containers.conf", "[\"/a\"]");
    let list = format!("write hooks_dir = [\"/a\", \"{ETC}\"]");
    let advice = format!("in /etc/containers/containers.conf, line 2, {list}");
    assert_eq!(found(&machine, &PODMAN), [(ETC.to_owned(), advice)]);
    // What is root's, others do not edit.
    machine.user_id = 1000;
    let advice = format!("in /home/u/.config/containers/containers.conf, under [engine], {list}");
    assert_eq!(found(&machine, &PODMAN), [(ETC.to_owned(), advice)]);
    machine.engine("/etc/containers/containers.conf", &format!("[\"{ETC}/\"]"));
    assert_eq!(found(&machine, &PODMAN), []);
}
