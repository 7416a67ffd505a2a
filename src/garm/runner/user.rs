//! The user that a runner runs as.

use std::path::{Path, PathBuf};

use super::error::RunnerError;
use crate::bundle::{UserError, UserFiles};
use crate::rootfs::Stack;
use crate::sys::fs::PathError;

/// The number of a user that the image does not have, as in GitHub's own images; the next that is
/// free if another one has it.
const FIRST_ID: u32 = 1001;

/// The name and the home directory of a user that the image does not have.
const NAME: &str = "runner";
const HOME: &str = "/home/runner";

/// The most that a file of users or groups may hold.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The longest name of a user.
const MAX_NAME: usize = 32;

/// The user that a runner runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunnerUser {
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
    pub home: PathBuf,
    /// Whether the image has it; if not, [`passwd_with`] has it added.
    pub exists: bool,
}

impl RunnerUser {
    fn root() -> Self {
        RunnerUser { uid: 0, gid: 0, home: "/root".into(), exists: false }
    }
}

/// Finds a user by name or number in the files of an image, or says what it will be once it is
/// added. The layers are unpacked ones, bottom to top.
pub fn user(layers: &[PathBuf], word: &str) -> Result<RunnerUser, RunnerError> {
    let files = Files::read(layers)?;
    let users = files.users();
    let (uid, gid) = match users.resolve(word, &[]) {
        Ok(user) if users.has_uid(user.uid) => {
            let home = user.home.into();
            return Ok(RunnerUser { uid: user.uid, gid: user.gid, home, exists: true });
        }
        Ok(user) if user.uid == 0 => return Ok(RunnerUser::root()),
        // A number does without an entry.
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

/// Returns `/etc/passwd` and `/etc/group` of an image with a user added that it does not have, by
/// what [`user`] was asked for.
pub fn passwd_with(
    layers: &[PathBuf],
    user: &RunnerUser,
    word: &str,
) -> Result<(Vec<u8>, Vec<u8>), RunnerError> {
    let files = Files::read(layers)?;
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
        // With `x` for a password, sudo wants an entry in `/etc/shadow` too.
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

/// Returns whether a user may be added by this name: it goes into files that others parse.
fn is_good_name(name: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    name.len() <= MAX_NAME
        && name.bytes().next().is_some_and(is_first)
        && name.bytes().all(|byte| is_first(byte) || byte.is_ascii_digit() || byte == b'-')
}

/// What an image has of users.
struct Files {
    passwd: Vec<u8>,
    group: Vec<u8>,
    passwd_text: String,
    group_text: String,
    shell: &'static str,
}

impl Files {
    fn read(layers: &[PathBuf]) -> Result<Self, PathError> {
        let stack = Stack::new(layers);
        let read = |path: &str| stack.read(Path::new(path), MAX_FILE_BYTES);
        let passwd = read("/etc/passwd")?.unwrap_or_default();
        let group = read("/etc/group")?.unwrap_or_default();
        let has_bash = stack.has_program(Path::new("/bin/bash"))?;
        Ok(Files {
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

    /// Two layers: one with these files, one above without any.
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
    fn a_user_of_the_image_is_as_the_image_has_it() {
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
        // The last line of one is not ended.
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
    fn numbers_and_names_that_others_have_are_not_given_twice() {
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
    fn an_image_without_users_has_root() {
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
    fn names_that_would_break_the_files_are_refused() {
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
