//! What buildah is told of registries: all that holds for pulls of our own.
//!
//! Mirrors, certificates and which registries are insecure are in a home directory of the build.
//! Logins are not: nothing that a Dockerfile runs may be where they are.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::{Path, PathBuf};

use crate::image::{Reference, RegistryClient};
use crate::sys::fs::{PathContext as _, PathError, ReadError, read_bounded};

/// The configuration in the home directory, and the directory of more of it, which there is none of.
pub const CONFIGURATION: &str = "registries.conf";
pub const NO_MORE: &str = "registries.conf.d";

/// Where it looks for certificates of authorities, by registry.
const CERTIFICATES: [&str; 3] = [".config", "containers", "certs.d"];

const POLICY: &str = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;

/// More than all authorities of the world take.
const MAX_CA_BYTES: u64 = 4 << 20;

/// The configuration of registries cannot be written for a builder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigureError {
    #[error(transparent)]
    Path(#[from] PathError),
    /// CA certificates of the settings cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Writes what buildah has to know of registries to its home directory, which is empty. All of it becomes
/// the user's and group's whose ids are given.
pub fn configure(
    home: &Path,
    owner: (u32, u32),
    client: &RegistryClient,
    images: &[Reference],
) -> Result<(), ConfigureError> {
    make_dirs(home, &[NO_MORE], owner)?;
    write_file(&home.join(CONFIGURATION), configuration(client, images).as_bytes(), owner)?;
    for (name, registry) in &client.options().registries {
        // No registry has such a name, and no certificates therefore.
        if registry.ca_files.is_empty() || name.contains('/') || name.starts_with('.') {
            continue;
        }
        let dir = make_dirs(home, &[&CERTIFICATES[..], &[name]].concat(), owner)?;
        for (number, file) in registry.ca_files.iter().enumerate() {
            let certificates = read_bounded(file, MAX_CA_BYTES)?;
            write_file(&dir.join(format!("{number}.crt")), &certificates, owner)?;
        }
    }
    Ok(())
}

/// Writes to buildah's home directory that no image needs a signature, as those of containers need none.
pub fn allow_all_images(home: &Path, owner: (u32, u32)) -> Result<(), PathError> {
    let directory = make_dirs(home, &CERTIFICATES[..2], owner)?;
    write_file(&directory.join("policy.json"), POLICY.as_bytes(), owner)
}

/// Returns `registries.conf`. Names without a registry mean Docker Hub, as everywhere in a workflow.
fn configuration(client: &RegistryClient, images: &[Reference]) -> String {
    let mut text = "unqualified-search-registries = [\"docker.io\"]\n\
                    short-name-mode = \"disabled\"\n"
        .to_owned();
    let registries = &client.options().registries;
    let named = images.iter().map(Reference::registry);
    let names: BTreeSet<_> = registries.keys().map(String::as_str).chain(named).collect();
    for name in names {
        let mirrors = registries.get(name).map_or(&[][..], |registry| &registry.mirrors);
        text += "\n[[registry]]\n";
        location(&mut text, name, client.is_insecure(name));
        for mirror in mirrors {
            text += "[[registry.mirror]]\n";
            let host = mirror.split('/').next().unwrap_or_default();
            location(&mut text, mirror, client.is_insecure(host));
        }
    }
    text
}

fn location(text: &mut String, name: &str, insecure: bool) {
    // A string of JSON is one of TOML too.
    let name = serde_json::Value::from(name);
    writeln!(text, "location = {name}\ninsecure = {insecure}").expect("a string takes it");
}

/// Makes directories for buildah's user, one in the other.
fn make_dirs(home: &Path, names: &[&str], owner: (u32, u32)) -> Result<PathBuf, PathError> {
    let mut path = home.to_owned();
    for name in names {
        path.push(name);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.at("make the directory", &path)?,
        }
        give(&path, owner)?;
    }
    Ok(path)
}

fn write_file(path: &Path, content: &[u8], owner: (u32, u32)) -> Result<(), PathError> {
    fs::write(path, content).at("write", path)?;
    give(path, owner)
}

fn give(path: &Path, (uid, gid): (u32, u32)) -> Result<(), PathError> {
    chown(path, Some(uid), Some(gid)).at("set the owner of", path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ClientOptions, RegistryOptions};

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
    fn mirrors_and_insecure_registries_are_those_of_pulls() {
        let images = ["127.0.0.1:1/a:1", "alpine"].map(|image| image.parse().unwrap());
        let expected = r#"unqualified-search-registries = ["docker.io"]
short-name-mode = "disabled"

[[registry]]
location = "127.0.0.1:1"
insecure = true

[[registry]]
location = "docker.io"
insecure = false
[[registry.mirror]]
location = "mirror.example/hub"
insecure = true
[[registry.mirror]]
location = "localhost:5000"
insecure = true

[[registry]]
location = "mirror.example"
insecure = true
"#;
        assert_eq!(configuration(&client(), &images), expected);
    }
}
