//! Logins for what is pulled and pushed, as files of the container `registry`.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::error::BuildError;
use crate::container_hook::request::{Registry, Secret};
use crate::image::{CredentialFile, Credentials, HelperError, Login, Reference, RegistryClient};
use crate::sys::fs::{PathContext as _, PathError, read_bounded};

/// More than the logins of all registries that anybody uses take.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The most images of a Dockerfile that are pulled with a login.
const MAX_PULLS: usize = 16;

/// The file with the login to push with; `buildctl` knows it by this name.
pub const PUSH: &str = "config.json";

/// Who has a login for an image: the file of the settings for builds, then all others.
pub struct Logins<'a> {
    own: Option<Credentials>,
    others: &'a Credentials,
}

/// Logins in files.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Whether there is one to push with.
    pub push: bool,
    /// Images to pull, and the names of the files with their logins.
    pub pulls: Vec<(String, String)>,
}

impl<'a> Logins<'a> {
    /// Reads the file of the settings, if they name one.
    pub fn new(file: Option<&Path>, others: &'a Credentials) -> Result<Self, BuildError> {
        let read = |path: &Path| {
            let text = read_bounded(path, MAX_FILE_BYTES)?;
            let file = CredentialFile::parse(&String::from_utf8_lossy(&text));
            let named = || path.display().to_string();
            file.map_err(|source| BuildError::Logins { file: named(), source })
        };
        let own = file.map(read).transpose()?;
        Ok(Logins { own: own.map(|file| Credentials::default().with_file(file)), others })
    }

    /// Returns the credentials that an image is asked for with.
    pub fn of(&self, image: &Reference) -> Result<&Credentials, HelperError> {
        if let Some(own) = &self.own
            && own.find(image.registry(), image.repository())?.is_some()
        {
            return Ok(own);
        }
        Ok(self.others)
    }

    /// Returns what the pod of the step needs to pull the image, if that is something it can have.
    pub fn to_pull(&self, image: &Reference) -> Result<Option<Registry>, HelperError> {
        let login = self.of(image)?.find(image.registry(), image.repository())?;
        let Some(Login::Password { username, password }) = login else { return Ok(None) };
        let password = Secret::new(password.reveal().to_owned());
        Ok(Some(Registry { username, password, server: Some(image.registry().to_owned()) }))
    }

    /// Writes the logins for an image that is pushed and for those that it is made from to a directory:
    /// a file for each, since two images of one registry may need different ones.
    pub fn write(
        &self,
        dir: &Path,
        client: &RegistryClient,
        pushed: &Reference,
        pulled: &[Reference],
    ) -> Result<Written, BuildError> {
        let mut written = Written::default();
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

/// Writes a file that is only its owner's from the beginning.
fn write(path: &Path, text: &[u8]) -> Result<(), PathError> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text)).at("write", path).inspect_err(|_| {
        // What is there of it is of no use.
        let _ = fs::remove_file(path);
    })
}

/// Logins as `docker login` writes them.
#[derive(Debug, Serialize)]
struct AuthFile {
    auths: BTreeMap<String, Auth>,
}

#[derive(Debug, Serialize)]
struct Auth {
    auth: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    identitytoken: String,
}

/// Returns the logins for an image and for its mirrors, as the file that `docker login` writes; none if
/// nobody has one. The file has one login for each registry.
pub fn auth_file(
    client: &RegistryClient,
    credentials: &Credentials,
    image: &Reference,
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
        if let Some(auth) = login.as_ref().and_then(Auth::of) {
            auths.insert(host.to_owned(), auth);
        }
    }
    let file = AuthFile { auths };
    Ok((!file.auths.is_empty()).then(|| serde_json::to_vec(&file).expect("strings are JSON")))
}

impl Auth {
    /// Returns a login as it is written; none if it cannot be.
    fn of(login: &Login) -> Option<Self> {
        let (pair, token) = match login {
            Login::Password { username, password } => {
                (format!("{username}:{}", password.reveal()), "")
            }
            Login::IdentityToken(token) => ("<token>:".to_owned(), token.reveal()),
            // There is no place for it.
            Login::RegistryToken(_) => return None,
        };
        Some(Auth { auth: STANDARD.encode(pair), identitytoken: token.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::image::{ClientOptions, Credential, RegistryOptions, Secret};

    fn login(name: &str) -> Login {
        Login::Password { username: name.to_owned(), password: Secret::new("p") }
    }

    #[test]
    fn the_file_of_the_settings_comes_first_and_each_image_has_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("push.json");
        // push:p
        fs::write(&file, r#"{"auths":{"registry.example":{"auth":"cHVzaDpw"}}}"#).unwrap();
        let others = Credentials::new(vec![
            Credential::new("registry.example", login("other")),
            Credential::new("ghcr.io", login("pull")),
        ]);
        let logins = Logins::new(Some(&file), &others).unwrap();
        let client = RegistryClient::new(ClientOptions::default()).unwrap();
        let [pushed, base, public] =
            ["registry.example/ci/a:1", "ghcr.io/octo/base:2", "quay.io/octo/x:3"]
                .map(|name| name.parse::<Reference>().unwrap());
        let files = dir.path().join("files");
        fs::create_dir(&files).unwrap();
        let written = logins.write(&files, &client, &pushed, &[base, public]).unwrap();
        let pulls = vec![("ghcr.io/octo/base:2".to_owned(), "pull-0.json".to_owned())];
        assert_eq!(written, Written { push: true, pulls });
        let text = fs::read_to_string(files.join(PUSH)).unwrap();
        assert_eq!(text, r#"{"auths":{"registry.example":{"auth":"cHVzaDpw"}}}"#);
        let metadata = fs::metadata(files.join("pull-0.json")).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        let registry = logins.to_pull(&pushed).unwrap().unwrap();
        assert_eq!((registry.username.as_str(), registry.password.expose()), ("push", "p"));
    }

    #[test]
    fn without_logins_there_are_no_files() {
        let dir = tempfile::tempdir().unwrap();
        let others = Credentials::default();
        let logins = Logins::new(None, &others).unwrap();
        let client = RegistryClient::new(ClientOptions::default()).unwrap();
        let image = "registry.example/ci/a:1".parse::<Reference>().unwrap();
        let written = logins.write(dir.path(), &client, &image, std::slice::from_ref(&image));
        assert_eq!(written.unwrap(), Written::default());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(logins.to_pull(&image).unwrap().is_none());
    }

    #[test]
    fn a_file_that_is_none_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (file, others) = (dir.path().join("push.json"), Credentials::default());
        assert!(matches!(Logins::new(Some(&file), &others), Err(BuildError::Read(_))));
        fs::write(&file, "secret").unwrap();
        let error = Logins::new(Some(&file), &others).err().unwrap();
        let text = crate::sys::error::chain(&error);
        assert!(text.contains("push.json") && !text.contains("secret"), "{text}");
    }

    fn client() -> RegistryClient {
        let mirrors = vec!["mirror.example/hub".to_owned(), "localhost:5000".to_owned()];
        let hub = RegistryOptions { mirrors, ..RegistryOptions::default() };
        let insecure = RegistryOptions { insecure: true, ..RegistryOptions::default() };
        let mut options = ClientOptions::default();
        options.registries = [("docker.io", hub), ("mirror.example", insecure)]
            .map(|(name, options)| (name.to_owned(), options))
            .into();
        RegistryClient::new(options).unwrap()
    }

    #[test]
    fn logins_are_those_of_the_image_and_of_its_mirrors() {
        let login = |name: &str| Login::Password {
            username: name.to_owned(),
            password: Secret::new("secret"),
        };
        let credentials = Credentials::new(vec![
            Credential::new("docker.io", login("hub")),
            Credential::new("mirror.example/hub/library", login("mirror")),
            Credential::new("ghcr.io", Login::IdentityToken(Secret::new("token"))),
        ]);
        let logins = |image: &str| {
            let logins = auth_file(&client(), &credentials, &image.parse().unwrap()).unwrap();
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
