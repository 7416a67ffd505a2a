//! User of a runner.

use std::path::{Path, PathBuf};

use oci_hooks_engine::bundle::{UserError, UserFiles};
use oci_hooks_engine::rootfs::LayerStack;
use oci_hooks_files::fs::PathError;

use super::error::RunnerError;

/// First id for a user that is added to an image, as in GitHub's images; if taken, the next free one is used.
const FIRST_ID: u32 = 1001;

/// Name of a user that is added to an image and is configured by number.
const NAME: &str = "runner";

/// Home directory of a user that is added to an image.
const HOME: &str = "/home/runner";

/// Size limit of `/etc/passwd` and `/etc/group`.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Length limit of a user name.
const MAX_NAME: usize = 32;

/// User of a runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerUser {
    pub uid: u32,
    pub gid: u32,
    pub home: PathBuf,
    /// If set, the image has the user; otherwise [`passwd_with`] adds it.
    pub exists: bool,
}

impl RunnerUser {
    fn root() -> Self {
        RunnerUser { uid: 0, gid: 0, home: "/root".into(), exists: false }
    }
}

/// Finds a user by name or number in an image, or returns the user to add. Layers are directories, bottom to top.
pub fn user(layers: &[PathBuf], word: &str) -> Result<RunnerUser, RunnerError> {
    let files = UserDatabase::read(layers)?;
    let users = files.users();
    let (uid, gid) = match users.resolve(word, &[]) {
        Ok(user) if users.has_uid(user.uid) => {
            let home = user.home.into();
            return Ok(RunnerUser { uid: user.uid, gid: user.gid, home, exists: true });
        }
        Ok(user) if user.uid == 0 => return Ok(RunnerUser::root()),
        // A number needs no entry.
        Ok(user) => (user.uid, user.uid),
        Err(UserError::UnknownUser { name }) if name == "root" => return Ok(RunnerUser::root()),
        Err(UserError::UnknownUser { name }) if is_good_name(&name) => {
            let is_free = |id: &u32| !users.has_uid(*id) && !users.has_gid(*id);
            let uid = (FIRST_ID..).find(is_free).expect("the files are shorter than that");
            (uid, users.gid_of(&name).unwrap_or(uid))
        }
        Err(UserError::UnknownUser { name }) => return Err(RunnerError::UserName { name }),
        Err(error) => return Err(error.into()),
    };
    Ok(RunnerUser { uid, gid, home: HOME.into(), exists: false })
}

/// Returns `/etc/passwd` and `/etc/group` of an image with `user` added; `word` is the argument of [`user`].
pub fn passwd_with(
    layers: &[PathBuf],
    user: &RunnerUser,
    word: &str,
) -> Result<(Vec<u8>, Vec<u8>), RunnerError> {
    let files = UserDatabase::read(layers)?;
    let users = files.users();
    let RunnerUser { uid, gid, home, .. } = user;
    let name = match *uid {
        0 => "root".to_owned(),
        _ if is_good_name(word) => word.to_owned(),
        uid if users.has_name(NAME) => format!("{NAME}{uid}"),
        _ => NAME.to_owned(),
    };
    let (mut passwd, mut group) = (files.passwd.clone(), files.group.clone());
    if !users.has_uid(*uid) {
        let shell = files.shell;
        // With `x` as the password, sudo needs an entry in `/etc/shadow` too.
        add_line(&mut passwd, &format!("{name}:*:{uid}:{gid}::{}:{shell}", home.display()));
    }
    if !users.has_gid(*gid) {
        let name = if users.gid_of(&name).is_some() { format!("{name}{gid}") } else { name };
        add_line(&mut group, &format!("{name}:x:{gid}:"));
    }
    Ok((passwd, group))
}

fn add_line(text: &mut Vec<u8>, line: &str) {
    if text.last().is_some_and(|last| *last != b'\n') {
        text.push(b'\n');
    }
    text.extend_from_slice(line.as_bytes());
    text.push(b'\n');
}

/// Returns whether a user name is safe to write to files that other programs parse.
fn is_good_name(name: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    name.len() <= MAX_NAME
        && name.bytes().next().is_some_and(is_first)
        && name.bytes().all(|byte| is_first(byte) || byte.is_ascii_digit() || byte == b'-')
}

/// Files of users and groups of an image.
struct UserDatabase {
    passwd: Vec<u8>,
    group: Vec<u8>,
    passwd_text: String,
    group_text: String,
    shell: &'static str,
}

impl UserDatabase {
    fn read(layers: &[PathBuf]) -> Result<Self, PathError> {
        let stack = LayerStack::new(layers);
        let read = |path: &str| stack.read(Path::new(path), MAX_FILE_BYTES);
        let passwd = read("/etc/passwd")?.unwrap_or_default();
        let group = read("/etc/group")?.unwrap_or_default();
        let has_bash = stack.has_program(Path::new("/bin/bash"))?;
        Ok(UserDatabase {
            passwd_text: String::from_utf8_lossy(&passwd).into_owned(),
            group_text: String::from_utf8_lossy(&group).into_owned(),
            passwd,
            group,
            shell: if has_bash { "/bin/bash" } else { "/bin/sh" },
        })
    }

    fn users(&self) -> UserFiles<'_> {
        UserFiles { passwd: &self.passwd_text, group: &self.group_text }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\napp:x:1000:100::/srv/app:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nusers:x:100:\n";

    /// Returns two layers: the lower one with these files, the upper one without.
    fn layers(dir: &Path, passwd: &str, group: &str) -> [PathBuf; 2] {
        let layers = ["lower", "upper"].map(|name| dir.join(name));
        fs::create_dir_all(layers[0].join("etc")).unwrap();
        fs::create_dir_all(layers[1].join("usr")).unwrap();
        fs::write(layers[0].join("etc/passwd"), passwd).unwrap();
        fs::write(layers[0].join("etc/group"), group).unwrap();
        layers
    }

    fn expect(user: &RunnerUser, uid: u32, gid: u32, home: &str, exists: bool) {
        assert_eq!(*user, RunnerUser { uid, gid, home: home.into(), exists });
    }

    #[test]
    fn user_of_the_image_is_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let layers = layers(dir.path(), PASSWD, GROUP);
        for word in ["app", "1000"] {
            expect(&user(&layers, word).unwrap(), 1000, 100, "/srv/app", true);
        }
        expect(&user(&layers, "root").unwrap(), 0, 0, "/root", true);
    }

    #[test]
    fn another_user_can_be_added() {
        let dir = tempfile::tempdir().unwrap();
        // The last line of the group file has no newline.
        let layers = layers(dir.path(), PASSWD, GROUP.trim_end());
        let runner = user(&layers, "runner").unwrap();
        expect(&runner, 1001, 1001, "/home/runner", false);
        let (passwd, group) = passwd_with(&layers, &runner, "runner").unwrap();
        let line = "runner:*:1001:1001::/home/runner:/bin/sh\n";
        assert_eq!(String::from_utf8(passwd).unwrap(), format!("{PASSWD}{line}"));
        assert_eq!(String::from_utf8(group).unwrap(), format!("{GROUP}runner:x:1001:\n"));

        let number = user(&layers, "1500").unwrap();
        expect(&number, 1500, 1500, "/home/runner", false);
        let (passwd, _) = passwd_with(&layers, &number, "1500").unwrap();
        assert!(
            String::from_utf8(passwd)
                .unwrap()
                .ends_with("\nrunner:*:1500:1500::/home/runner:/bin/sh\n")
        );
    }

    #[test]
    fn existing_ids_and_names_are_not_reused() {
        let dir = tempfile::tempdir().unwrap();
        let passwd = "app:x:1001:1001::/:\nrunner:x:1003:9::/:\n";
        let layers = layers(dir.path(), passwd, "x:x:1002:\nci:x:121:\n");
        expect(&user(&layers, "build").unwrap(), 1004, 1004, "/home/runner", false);
        let ci = user(&layers, "ci").unwrap();
        expect(&ci, 1004, 121, "/home/runner", false);
        let (_, group) = passwd_with(&layers, &ci, "ci").unwrap();
        assert_eq!(group, b"x:x:1002:\nci:x:121:\n");
        let number = user(&layers, "1500").unwrap();
        let (passwd, _) = passwd_with(&layers, &number, "1500").unwrap();
        assert!(String::from_utf8(passwd).unwrap().contains("\nrunner1500:*:1500:"));
    }

    #[test]
    fn image_without_users_has_root() {
        let dir = tempfile::tempdir().unwrap();
        let layers = [dir.path().to_owned()];
        for word in ["root", "0", ""] {
            let root = user(&layers, word).unwrap();
            expect(&root, 0, 0, "/root", false);
            let (passwd, group) = passwd_with(&layers, &root, word).unwrap();
            assert_eq!(passwd, b"root:*:0:0::/root:/bin/sh\n");
            assert_eq!(group, b"root:x:0:\n");
        }
    }

    #[test]
    fn names_that_would_corrupt_the_files_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let layers = layers(dir.path(), PASSWD, GROUP);
        let long = "a".repeat(33);
        for word in ["a\nroot2:x:0:0::/:", "Runner", "-a", "a b", "é", "a/b", &long] {
            let error = user(&layers, word).unwrap_err();
            assert!(
                matches!(error, RunnerError::UserName { .. } | RunnerError::User(_)),
                "{word:?}"
            );
        }
    }
}
