//! Logins for pulling and pushing images, as files of the container `registry`.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use container_hook_job::request::{RegistryLogin, SecretText};
use oci_hooks_files::fs::{PathContext as _, PathError, read_bounded};
use oci_hooks_image::{
    CredentialFile, Credentials, HelperError, ImageReference, LoginMethod, RegistryClient,
};
use serde::Serialize;

use super::error::BuildError;

/// Maximum size of the file with logins.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Maximum number of a Dockerfile's images that are pulled with a login.
const MAX_PULLS: usize = 16;

/// File with the login for the push; `buildctl` expects this name.
pub const PUSH: &str = "config.json";

/// Registry logins of a build: those in the credential file of the build settings, then all other
/// credentials.
pub struct BuildLogins<'a> {
    own: Option<Credentials>,
    others: &'a Credentials,
}

/// The files with logins that [`BuildLogins::write`] has written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LoginFiles {
    /// If set, the file [`PUSH`] exists, with the login for pushing the image.
    pub push: bool,
    /// Images to pull, each with the name of the file with its login.
    pub pulls: Vec<(String, String)>,
}

impl<'a> BuildLogins<'a> {
    /// Reads the credential file of the build settings, if they name one.
    pub fn new(file: Option<&Path>, others: &'a Credentials) -> Result<Self, BuildError> {
        let read = |path: &Path| {
            let text = read_bounded(path, MAX_FILE_BYTES)?;
            let file = CredentialFile::parse(&String::from_utf8_lossy(&text));
            let named = || path.display().to_string();
            file.map_err(|source| BuildError::Logins { file: named(), source })
        };
        let own = file.map(read).transpose()?;
        Ok(BuildLogins { own: own.map(|file| Credentials::default().with_file(file)), others })
    }

    /// Returns the credentials for an image: those of the build settings if they have a login for
    /// it, else all others.
    pub fn of(&self, image: &ImageReference) -> Result<&Credentials, HelperError> {
        if let Some(own) = &self.own
            && own.find(image.registry(), image.repository())?.is_some()
        {
            return Ok(own);
        }
        Ok(self.others)
    }

    /// Returns the login with which the step's pod pulls the image; `None` unless it is a user name and
    /// password.
    pub fn to_pull(&self, image: &ImageReference) -> Result<Option<RegistryLogin>, HelperError> {
        let login = self.of(image)?.find(image.registry(), image.repository())?;
        let Some(LoginMethod::Password { username, password }) = login else { return Ok(None) };
        let password = SecretText::new(password.reveal().to_owned());
        Ok(Some(RegistryLogin { username, password, server: Some(image.registry().to_owned()) }))
    }

    /// Writes logins for the pushed image and for its base images to a directory: a file for each, since two
    /// images of one registry may need different logins.
    pub fn write(
        &self,
        dir: &Path,
        client: &RegistryClient,
        pushed: &ImageReference,
        pulled: &[ImageReference],
    ) -> Result<LoginFiles, BuildError> {
        let mut written = LoginFiles::default();
        if let Some(text) = auth_file(client, self.of(pushed)?, pushed)? {
            write(&dir.join(PUSH), &text)?;
            written.push = true;
        }
        for image in pulled {
            let Some(text) = auth_file(client, self.of(image)?, image)? else { continue };
            if written.pulls.len() == MAX_PULLS {
                break;
            }
            let name = format!("pull-{}.json", written.pulls.len());
            write(&dir.join(&name), &text)?;
            written.pulls.push((image.to_string(), name));
        }
        Ok(written)
    }
}

/// Writes a new file with mode 0600.
fn write(path: &Path, text: &[u8]) -> Result<(), PathError> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text)).with_path("write", path).inspect_err(|_| {
        // Removes the incomplete file.
        let _ = fs::remove_file(path);
    })
}

/// Logins in the format of `docker login`.
#[derive(Debug, Serialize)]
struct AuthFile {
    auths: BTreeMap<String, AuthEntry>,
}

#[derive(Debug, Serialize)]
struct AuthEntry {
    auth: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    identitytoken: String,
}

/// Returns the logins for an image and for its mirrors in the format of `docker login`, with one login for
/// each registry; `None` without any login.
pub fn auth_file(
    client: &RegistryClient,
    credentials: &Credentials,
    image: &ImageReference,
) -> Result<Option<Vec<u8>>, HelperError> {
    let registries = &client.options().registries;
    let mirrors = registries.get(image.registry()).map_or(&[][..], |registry| &registry.mirrors);
    let mirrors = mirrors.iter().map(|mirror| {
        let (host, path) = mirror.split_once('/').unwrap_or((mirror, ""));
        (host, format!("{path}/{}", image.repository()).trim_start_matches('/').to_owned())
    });
    let own = (image.registry(), image.repository().to_owned());
    let mut auths = BTreeMap::new();
    for (host, repository) in mirrors.chain([own]) {
        let login = credentials.find(host, &repository)?;
        if let Some(auth) = login.as_ref().and_then(AuthEntry::of) {
            auths.insert(host.to_owned(), auth);
        }
    }
    let file = AuthFile { auths };
    Ok((!file.auths.is_empty()).then(|| serde_json::to_vec(&file).expect("strings are JSON")))
}

impl AuthEntry {
    /// Converts a login to an entry of `docker login`; `None` if the format cannot represent it.
    fn of(login: &LoginMethod) -> Option<Self> {
        let (pair, token) = match login {
            LoginMethod::Password { username, password } => {
                (format!("{username}:{}", password.reveal()), "")
            }
            LoginMethod::IdentityToken(token) => ("<token>:".to_owned(), token.reveal()),
            // The format has no field for it.
            LoginMethod::RegistryToken(_) => return None,
        };
        Some(AuthEntry { auth: STANDARD.encode(pair), identitytoken: token.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use container_hook_job::testing::mirrored_client;
    use oci_hooks_image::{ClientOptions, RegistryCredential, Secret};

    use super::*;

    fn login(name: &str) -> LoginMethod {
        LoginMethod::Password { username: name.to_owned(), password: Secret::new("p") }
    }

    #[test]
    fn settings_file_comes_first_and_each_image_has_its_own_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("push.json");
        // push:p
        fs::write(&file, r#"{"auths":{"registry.example":{"auth":"cHVzaDpw"}}}"#).unwrap();
        let others = Credentials::new(vec![
            RegistryCredential::new("registry.example", login("other")),
            RegistryCredential::new("ghcr.io", login("pull")),
        ]);
        let logins = BuildLogins::new(Some(&file), &others).unwrap();
        let client = RegistryClient::new(ClientOptions::default()).unwrap();
        let [pushed, base, public] =
            ["registry.example/ci/a:1", "ghcr.io/octo/base:2", "quay.io/octo/x:3"]
                .map(|name| name.parse::<ImageReference>().unwrap());
        let files = dir.path().join("files");
        fs::create_dir(&files).unwrap();
        let written = logins.write(&files, &client, &pushed, &[base, public]).unwrap();
        let pulls = vec![("ghcr.io/octo/base:2".to_owned(), "pull-0.json".to_owned())];
        assert_eq!(written, LoginFiles { push: true, pulls });
        let text = fs::read_to_string(files.join(PUSH)).unwrap();
        assert_eq!(text, r#"{"auths":{"registry.example":{"auth":"cHVzaDpw"}}}"#);
        let metadata = fs::metadata(files.join("pull-0.json")).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        let registry = logins.to_pull(&pushed).unwrap().unwrap();
        assert_eq!((registry.username.as_str(), registry.password.expose()), ("push", "p"));
    }

    #[test]
    fn no_logins_create_no_files() {
        let dir = tempfile::tempdir().unwrap();
        let others = Credentials::default();
        let logins = BuildLogins::new(None, &others).unwrap();
        let client = RegistryClient::new(ClientOptions::default()).unwrap();
        let image = "registry.example/ci/a:1".parse::<ImageReference>().unwrap();
        let written = logins.write(dir.path(), &client, &image, std::slice::from_ref(&image));
        assert_eq!(written.unwrap(), LoginFiles::default());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(logins.to_pull(&image).unwrap().is_none());
    }

    #[test]
    fn invalid_login_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (file, others) = (dir.path().join("push.json"), Credentials::default());
        assert!(matches!(BuildLogins::new(Some(&file), &others), Err(BuildError::Read(_))));
        fs::write(&file, "secret").unwrap();
        let error = BuildLogins::new(Some(&file), &others).err().unwrap();
        let text = oci_hooks_files::error::chain(&error);
        assert!(text.contains("push.json") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn logins_match_the_image_and_its_mirrors() {
        let login = |name: &str| LoginMethod::Password {
            username: name.to_owned(),
            password: Secret::new("secret"),
        };
        let credentials = Credentials::new(vec![
            RegistryCredential::new("docker.io", login("hub")),
            RegistryCredential::new("mirror.example/hub/library", login("mirror")),
            RegistryCredential::new("ghcr.io", LoginMethod::IdentityToken(Secret::new("token"))),
        ]);
        let logins = |image: &str| {
            let logins =
                auth_file(&mirrored_client(), &credentials, &image.parse().unwrap()).unwrap();
            logins.map(|text| String::from_utf8(text).unwrap())
        };
        assert_eq!(
            logins("alpine").as_deref(),
            Some(
                r#"{"auths":{"docker.io":{"auth":"aHViOnNlY3JldA=="},"mirror.example":{"auth":"bWlycm9yOnNlY3JldA=="}}}"#
            )
        );
        assert_eq!(
            logins("ghcr.io/a/b").as_deref(),
            Some(r#"{"auths":{"ghcr.io":{"auth":"PHRva2VuPjo=","identitytoken":"token"}}}"#)
        );
        assert_eq!(logins("quay.io/a/b"), None);
    }
}
