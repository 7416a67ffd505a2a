//! The registry configuration of buildah, the same as for the hook's own pulls.
//!
//! The home directory of the build contains mirrors, CA certificates and insecure registries. It contains no
//! logins, because the commands of a Dockerfile must not be able to read them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{
    PathContext as _, PathError, ReadError, create_if_missing, read_bounded,
};
use oci_hooks_image::{ImageReference, RegistryClient};

/// Name of the configuration file in buildah's home directory.
pub const CONFIGURATION: &str = "registries.conf";

/// Name of the directory of drop-ins in buildah's home directory; it is empty.
pub const DROP_INS: &str = "registries.conf.d";

/// Path components, in buildah's home directory, of the directory that contains a directory of CA
/// certificates for each registry.
const CERTIFICATES: [&str; 3] = [".config", "containers", "certs.d"];

const POLICY: &str = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;

/// Maximum size of a CA certificate file; a bundle of all public CAs is smaller.
const MAX_CA_BYTES: u64 = 4 << 20;

/// Errors of writing the registry configuration of a builder.
#[derive(Debug, thiserror::Error)]
pub enum RegistryConfigError {
    #[error(transparent)]
    Path(#[from] PathError),
    /// The settings name CA certificates that cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Writes the registry configuration to buildah's empty home directory. All files belong to `owner`, a user
/// and group ID.
pub fn configure(
    home: &Path,
    owner: (u32, u32),
    client: &RegistryClient,
    images: &[ImageReference],
) -> Result<(), RegistryConfigError> {
    make_dirs(home, &[DROP_INS], owner)?;
    write_file(&home.join(CONFIGURATION), configuration(client, images).as_bytes(), owner)?;
    for (name, registry) in &client.options().registries {
        // No registry has such a name, and as a path it could lead out of the directory.
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

/// Writes a signature policy to buildah's home directory that accepts unsigned images, as the hook's own
/// pulls do.
pub fn allow_all_images(home: &Path, owner: (u32, u32)) -> Result<(), PathError> {
    let directory = make_dirs(home, &CERTIFICATES[..2], owner)?;
    write_file(&directory.join("policy.json"), POLICY.as_bytes(), owner)
}

/// Returns `registries.conf`. Names without a registry mean Docker Hub, as everywhere in a workflow.
fn configuration(client: &RegistryClient, images: &[ImageReference]) -> String {
    let mut text = "unqualified-search-registries = [\"docker.io\"]\n\
                    short-name-mode = \"disabled\"\n"
        .to_owned();
    let registries = &client.options().registries;
    let named = images.iter().map(ImageReference::registry);
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
    // A JSON string is a TOML string too.
    let name = serde_json::Value::from(name);
    writeln!(text, "location = {name}\ninsecure = {insecure}").expect("a string takes it");
}

/// Creates nested directories for buildah's user.
fn make_dirs(home: &Path, names: &[&str], owner: (u32, u32)) -> Result<PathBuf, PathError> {
    let mut path = home.to_owned();
    for name in names {
        path.push(name);
        create_if_missing(&path, 0o700)?;
        change_owner(&path, owner)?;
    }
    Ok(path)
}

fn write_file(path: &Path, content: &[u8], owner: (u32, u32)) -> Result<(), PathError> {
    fs::write(path, content).with_path("write", path)?;
    change_owner(path, owner)
}

fn change_owner(path: &Path, (uid, gid): (u32, u32)) -> Result<(), PathError> {
    chown(path, Some(uid), Some(gid)).with_path("set the owner of", path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mirrored_client;

    #[test]
    fn buildah_uses_the_mirrors_and_insecure_registries_of_pulls() {
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
        assert_eq!(configuration(&mirrored_client(), &images), expected);
    }
}
