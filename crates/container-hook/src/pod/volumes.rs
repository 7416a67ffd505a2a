//! `volumes` of the pod, and the sources of their contents.

use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use container_hook_job::policy::{Policy, is_engine_socket};
use container_hook_job::quantity::Quantity;
use container_hook_job::template::{FieldPath, TemplateFault};
use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, EmptyDirVolumeSource, HostPathVolumeSource, KeyToPath, Volume,
};

use super::environment::{PodAddresses, ValueSources, resource_field};
use super::objects::ObjectRef;

/// The source of a volume's content.
#[derive(Debug, PartialEq, Eq)]
pub enum VolumeBacking {
    /// A new directory, removed with the pod.
    Empty {
        /// Set for `tmpfs`.
        is_memory: bool,
        size_bytes: Option<u64>,
    },
    /// A file or directory of the host.
    Host { path: PathBuf, create: CreateIfMissing },
    /// Files that the pod cannot change.
    Files(Vec<VolumeFile>),
}

/// The file type to create if a path does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateIfMissing {
    Nothing,
    Directory,
    File,
}

/// A file of a volume.
#[derive(Debug, PartialEq, Eq)]
pub struct VolumeFile {
    pub path: PathBuf,
    pub mode: u32,
    pub content: Vec<u8>,
}

/// Mode of files without `defaultMode` or `mode`.
const DEFAULT_MODE: u32 = 0o644;

/// The sources of the template's volumes, by name.
pub type VolumeBackings = BTreeMap<String, VolumeBacking>;

impl ValueSources<'_> {
    /// Returns the sources of all volumes. Fails if any is invalid, even if it is not mounted.
    pub fn backings(self, policy: &Policy) -> Result<VolumeBackings, TemplateFault> {
        let backings = self.pod.volumes().map(|(volume, place)| {
            Ok((volume.name.clone(), self.backing(volume, &place, policy)?))
        });
        backings.collect()
    }

    fn backing(
        self,
        volume: &Volume,
        place: &FieldPath,
        policy: &Policy,
    ) -> Result<VolumeBacking, TemplateFault> {
        let empty = |source| empty_dir(source, &place.at("emptyDir"));
        let host = |source| host_path(source, &place.at("hostPath"), policy);
        if let Some(source) = &volume.empty_dir {
            return empty(source);
        }
        if let Some(source) = &volume.host_path {
            return host(source);
        }
        let mut files = VolumeFiles { sources: self, mode: DEFAULT_MODE, files: Vec::new() };
        let settings = self.settings;
        if let Some(source) = &volume.config_map {
            let place = place.at("configMap");
            files.set_mode(source.default_mode, &place)?;
            let reference = ObjectRef::config_map(settings, &source.name, source.optional);
            files.object(reference, source.items.as_deref(), &place)?;
        } else if let Some(source) = &volume.secret {
            let place = place.at("secret");
            files.set_mode(source.default_mode, &place)?;
            let name = source.secret_name.as_deref().unwrap_or_default();
            let reference = ObjectRef::secret(settings, name, source.optional);
            files.object(reference, source.items.as_deref(), &place)?;
        } else if let Some(source) = &volume.downward_api {
            let place = place.at("downwardAPI");
            files.set_mode(source.default_mode, &place)?;
            files.fields(source.items.as_deref(), &place)?;
        } else if let Some(source) = &volume.projected {
            let place = place.at("projected");
            files.set_mode(source.default_mode, &place)?;
            for (at, source) in source.sources.iter().flatten().enumerate() {
                let place = place.at("sources").item(at);
                if let Some(source) = &source.config_map {
                    let reference = ObjectRef::config_map(settings, &source.name, source.optional);
                    files.object(reference, source.items.as_deref(), &place.at("configMap"))?;
                }
                if let Some(source) = &source.secret {
                    let reference = ObjectRef::secret(settings, &source.name, source.optional);
                    files.object(reference, source.items.as_deref(), &place.at("secret"))?;
                }
                if let Some(fields) = &source.downward_api {
                    files.fields(fields.items.as_deref(), &place.at("downwardAPI"))?;
                }
            }
        } else {
            // A volume without a source is an `emptyDir`, as on Kubernetes.
            return empty(&EmptyDirVolumeSource::default());
        }
        Ok(VolumeBacking::Files(files.files))
    }
}

fn empty_dir(
    source: &EmptyDirVolumeSource,
    place: &FieldPath,
) -> Result<VolumeBacking, TemplateFault> {
    let is_memory = match source.medium.as_deref() {
        None | Some("") => false,
        Some("Memory") => true,
        Some(other) => {
            let problem = format!("{other:?} is not supported: write `Memory` or nothing");
            return Err(place.at("medium").fault(problem));
        }
    };
    let size = source.size_limit.as_ref().map(|size| {
        let no_quantity = || {
            format!("{:?} is not a quantity: expected a number of bytes, for example 64Mi", size.0)
        };
        Quantity::parse(&size.0).ok_or_else(|| place.at("sizeLimit").fault(no_quantity()))
    });
    let size_bytes = size.transpose()?.map(Quantity::units).filter(|size| *size > 0);
    if size_bytes.is_some() && !is_memory {
        let problem = "the size of a directory on disk cannot be limited: add `medium: Memory`, or remove `sizeLimit`";
        return Err(place.at("sizeLimit").fault(problem));
    }
    Ok(VolumeBacking::Empty { is_memory, size_bytes })
}

/// Checks a file or directory of the host. The template is the admin's, so the policy is checked only for sockets
/// that amount to root on the host.
fn host_path(
    source: &HostPathVolumeSource,
    place: &FieldPath,
    policy: &Policy,
) -> Result<VolumeBacking, TemplateFault> {
    let path = PathBuf::from(&source.path);
    let path_place = place.at("path");
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return Err(path_place.fault("has to be an absolute path without `..`"));
    }
    let found = match fs::canonicalize(&path) {
        Ok(real) => {
            check_socket(&path, policy, &path_place)?;
            let status = fs::metadata(&real);
            Some(status.map_err(|error| path_place.fault(error.to_string()))?.file_type())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(path_place.fault(error.to_string())),
    };
    let kind = source.type_.as_deref().unwrap_or_default();
    let is = |wanted: fn(&fs::FileType) -> bool| found.as_ref().map(wanted);
    let (fits, create) = match kind {
        "" => (Some(found.is_some()), CreateIfMissing::Nothing),
        "DirectoryOrCreate" => {
            (Some(is(fs::FileType::is_dir).unwrap_or(true)), CreateIfMissing::Directory)
        }
        "FileOrCreate" => (Some(is(fs::FileType::is_file).unwrap_or(true)), CreateIfMissing::File),
        "Directory" => (is(fs::FileType::is_dir), CreateIfMissing::Nothing),
        "File" => (is(fs::FileType::is_file), CreateIfMissing::Nothing),
        "Socket" => (is(|kind| kind.is_socket()), CreateIfMissing::Nothing),
        "CharDevice" => (is(|kind| kind.is_char_device()), CreateIfMissing::Nothing),
        "BlockDevice" => (is(|kind| kind.is_block_device()), CreateIfMissing::Nothing),
        other => {
            let problem = format!(
                "{other:?} is not a type of `hostPath`: expected `DirectoryOrCreate`, `Directory`, `FileOrCreate`, `File`, `Socket`, `CharDevice` or `BlockDevice`"
            );
            return Err(place.at("type").fault(problem));
        }
    };
    match fits {
        Some(true) => Ok(VolumeBacking::Host { path, create }),
        _ if found.is_none() => Err(path_place.fault(format!(
            "{} does not exist: create it, or set `type` to `DirectoryOrCreate` or `FileOrCreate`",
            path.display()
        ))),
        _ => Err(path_place.fault(format!("{} does not match the type `{kind}`", path.display()))),
    }
}

/// Rejects the socket of a container engine, even through a symbolic link, unless workflows may mount it too.
pub fn check_socket(path: &Path, policy: &Policy, place: &FieldPath) -> Result<(), TemplateFault> {
    let Ok(real) = fs::canonicalize(path) else { return Ok(()) };
    if !(is_engine_socket(path) || is_engine_socket(&real)) || policy.allows_path(&real) {
        return Ok(());
    }
    Err(place.fault(format!(
        "{} amounts to root on this machine: remove it, or set `bind-mounts = [{:?}]` under {}",
        path.display(),
        real.display().to_string(),
        policy.section("policy")
    )))
}

/// Collects the files of a volume.
struct VolumeFiles<'a> {
    sources: ValueSources<'a>,
    mode: u32,
    files: Vec<VolumeFile>,
}

impl VolumeFiles<'_> {
    fn set_mode(&mut self, mode: Option<i32>, place: &FieldPath) -> Result<(), TemplateFault> {
        if let Some(mode) = mode {
            self.mode = permissions(mode, &place.at("defaultMode"))?;
        }
        Ok(())
    }

    fn object(
        &mut self,
        reference: ObjectRef<'_>,
        items: Option<&[KeyToPath]>,
        place: &FieldPath,
    ) -> Result<(), TemplateFault> {
        let Some(mut object) = reference.object(place)? else { return Ok(()) };
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            for (key, content) in object {
                self.files.push(VolumeFile { path: key.into(), mode: self.mode, content });
            }
            return Ok(());
        };
        for (at, item) in items.iter().enumerate() {
            let place = place.at("items").item(at);
            let Some(content) = object.remove(&item.key) else {
                if reference.optional == Some(true) {
                    continue;
                }
                let problem = format!("{} has no key {:?}", reference.name, item.key);
                return Err(place.at("key").fault(problem));
            };
            self.add(&item.path, item.mode, content, &place)?;
        }
        Ok(())
    }

    fn fields(
        &mut self,
        items: Option<&[DownwardAPIVolumeFile]>,
        place: &FieldPath,
    ) -> Result<(), TemplateFault> {
        for (at, item) in items.into_iter().flatten().enumerate() {
            let place = place.at("items").item(at);
            let value = match (&item.field_ref, &item.resource_field_ref) {
                (Some(field), _) => {
                    // The pod has no addresses yet.
                    let value = self.sources.field(field, &place.at("fieldRef"))?;
                    value.resolve_addresses(PodAddresses::default())
                }
                (None, Some(resource)) => {
                    let place = place.at("resourceFieldRef");
                    let name = resource.container_name.as_deref().unwrap_or_default();
                    let container = self.sources.pod.containers.get(name).ok_or_else(|| {
                        place
                            .at("containerName")
                            .fault("is not the name of a container of the template")
                    })?;
                    resource_field(resource, container.resources.as_ref(), &place)?
                }
                (None, None) => {
                    return Err(place.fault("needs one of `fieldRef` and `resourceFieldRef`"));
                }
            };
            self.add(&item.path, item.mode, value.into_bytes(), &place)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        path: &str,
        mode: Option<i32>,
        content: Vec<u8>,
        place: &FieldPath,
    ) -> Result<(), TemplateFault> {
        let path = descending_path(path)
            .ok_or_else(|| place.at("path").fault("has to be a relative path without `..`"))?;
        let mode = mode.map(|mode| permissions(mode, &place.at("mode"))).transpose()?;
        self.files.push(VolumeFile { path, mode: mode.unwrap_or(self.mode), content });
        Ok(())
    }
}

fn permissions(mode: i32, place: &FieldPath) -> Result<u32, TemplateFault> {
    let problem = "must be 0 to 511: YAML reads 0644 as a decimal number, and 0o644 as octal";
    let mode = u32::try_from(mode).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| place.fault(problem))
}

/// Returns a relative path that does not leave its starting directory; none for other paths.
pub fn descending_path(path: &str) -> Option<PathBuf> {
    let is_plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    let path = Path::new(path);
    (!path.as_os_str().is_empty() && path.components().all(is_plain)).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use container_hook_job::template::{MergeTarget, TemplateSettings};
    use serde_json::json;

    use super::*;
    use crate::pod::parts::tests::pod;
    use crate::pod::testing::merge_template;

    #[test]
    fn host_paths_must_match_their_declared_type() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        fs::write(at("file"), "").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("podman.sock")).unwrap();
        let place = merge_template(&json!({})).1;
        let found = |path: String, kind: &str, policy: &Policy| {
            let source = HostPathVolumeSource { path, type_: Some(kind.to_owned()) };
            host_path(&source, &place, policy).map_err(|fault| fault.problem)
        };
        let none = Policy::default();
        for (name, kind) in [
            ("file", ""),
            ("file", "File"),
            ("file", "FileOrCreate"),
            ("new", "FileOrCreate"),
            ("new", "DirectoryOrCreate"),
            (".", "Directory"),
            ("../../dev/null", "x"),
        ] {
            assert_eq!(found(at(name), kind, &none).is_ok(), kind != "x", "{name} {kind}");
        }
        assert!(found("/dev/null".to_owned(), "CharDevice", &none).is_ok());
        for (name, kind, expected) in [
            ("file", "Directory", "does not match the type `Directory`"),
            ("file", "DirectoryOrCreate", "does not match the type `DirectoryOrCreate`"),
            ("new", "", "does not exist"),
            ("new", "Socket", "does not exist"),
            ("podman.sock", "Socket", "root on this machine"),
        ] {
            let said = found(at(name), kind, &none).unwrap_err();
            assert!(said.contains(expected), "{name} {kind}: {said}");
        }
        let policy = Policy { bind_mounts: vec![dir.path().to_owned()], ..Policy::default() };
        assert!(found(at("podman.sock"), "Socket", &policy).is_ok());
        assert!(found("relative".to_owned(), "", &none).is_err());
    }

    #[test]
    fn invalid_mode_is_reported_with_its_path() {
        let volume = json!({"name": "v", "configMap": {"name": "c", "defaultMode": 644}});
        let (merged, place) = merge_template(&json!({"spec": {"volumes": [volume]}}));
        let pod = pod(&merged, place, &[MergeTarget::Job]).unwrap();
        let settings = TemplateSettings::default();
        let sources = ValueSources { settings: &settings, pod: &pod.fields };
        let fault = sources.backings(&Policy::default()).unwrap_err().to_string();
        assert!(fault.contains(": /spec/volumes/0/configMap/defaultMode: must be"), "{fault}");
    }

    #[test]
    fn subpaths_stay_below_their_volume() {
        assert_eq!(descending_path("a/./b"), Some("a/./b".into()));
        for path in ["", "/a", "..", "a/../b"] {
            assert_eq!(descending_path(path), None, "{path}");
        }
    }

    #[test]
    fn memory_sizes_are_quantities() {
        let place = merge_template(&json!({})).1;
        let source = |value| serde_json::from_value::<EmptyDirVolumeSource>(value).unwrap();
        let backing = empty_dir(&source(json!({"medium": "Memory", "sizeLimit": "64Mi"})), &place);
        assert_eq!(
            backing,
            Ok(VolumeBacking::Empty { is_memory: true, size_bytes: Some(64 << 20) })
        );
        for refused in [json!({"medium": "HugePages"}), json!({"sizeLimit": "64Mi"})] {
            assert!(empty_dir(&source(refused.clone()), &place).is_err(), "{refused}");
        }
    }
}
