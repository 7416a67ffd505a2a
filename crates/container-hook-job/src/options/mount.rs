//! Options about volumes.

use super::CreateOptions;
use super::value::{boolean, csv, size_bytes};
use crate::volumes::{RequestVolume, Tmpfs, VolumePropagation, VolumeSource};

pub(super) fn volume(value: &str) -> Result<RequestVolume, String> {
    RequestVolume::parse(value).map_err(|error| error.to_string())
}

pub(super) fn tmpfs(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    let tmpfs = Tmpfs::parse(value).map_err(|error| error.to_string())?;
    // The last mount for a target counts.
    options.tmpfs.retain(|other| other.target != tmpfs.target);
    options.tmpfs.push(tmpfs);
    Ok(())
}

/// The fields of `--mount`.
#[derive(Default)]
struct MountFields {
    kind: Option<String>,
    source: Option<String>,
    target: Option<String>,
    read_only: bool,
    propagation: Option<VolumePropagation>,
    not_recursive: bool,
    no_copy: bool,
    tmpfs: Vec<String>,
    /// Fields that only one type of mount has: type and field.
    only: Vec<(&'static str, String)>,
}

pub(super) fn mount(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    let mut fields = MountFields::default();
    for field in csv(value)? {
        fields.read(&field)?;
    }
    let kind = fields.kind.take().unwrap_or_else(|| "volume".to_owned());
    if let Some((of, field)) = fields.only.iter().find(|(of, _)| *of != kind) {
        return Err(format!("{field} is only for type={of}"));
    }
    let target = fields.target.take().ok_or("target= is missing")?;
    match kind.as_str() {
        "bind" | "volume" => {
            fields.volume(&kind, &target).map(|volume| options.volumes.push(volume))
        }
        "tmpfs" if fields.source.is_some() => Err("type=tmpfs has no source".to_owned()),
        "tmpfs" => {
            if fields.read_only {
                fields.tmpfs.push("ro".to_owned());
            }
            tmpfs(options, &format!("{target}:{}", fields.tmpfs.join(",")))
        }
        _ => Err(format!("type={kind} is not supported: expected bind, volume or tmpfs")),
    }
}

impl MountFields {
    fn read(&mut self, field: &str) -> Result<(), String> {
        let (key, value) = match field.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (field, None),
        };
        let key = key.trim().to_ascii_lowercase();
        let truth = || value.map_or(Ok(true), boolean);
        let text = || value.map(str::to_owned).ok_or_else(|| format!("{key} needs a value"));
        match key.as_str() {
            "type" => self.kind = Some(text()?.to_ascii_lowercase()),
            "source" | "src" => self.source = Some(text()?),
            "target" | "dst" | "destination" => self.target = Some(text()?),
            "readonly" | "ro" => self.read_only = truth()?,
            // A hint for Docker Desktop on macOS.
            "consistency" => {}
            "bind-propagation" => {
                self.propagation = VolumePropagation::parse(&text()?).map_err(|_| {
                    "bind-propagation must be private, slave or shared, or one of these with a leading r"
                })?;
            }
            "bind-nonrecursive" => self.not_recursive = truth()?,
            "bind-recursive" => match text()?.as_str() {
                "enabled" => {}
                "disabled" => self.not_recursive = true,
                _ => return Err("bind-recursive must be enabled or disabled".to_owned()),
            },
            "volume-nocopy" => self.no_copy = truth()?,
            "tmpfs-size" => self.tmpfs.push(format!("size={}", size_bytes(&text()?)?)),
            "tmpfs-mode" => {
                let mode = u32::from_str_radix(&text()?, 8).ok().filter(|mode| *mode <= 0o7777);
                let mode = mode.ok_or("tmpfs-mode must be octal, such as 1777")?;
                self.tmpfs.push(format!("mode={mode:o}"));
            }
            _ => return Err(format!("{key} is not supported")),
        }
        for kind in ["bind", "volume", "tmpfs"] {
            if key.strip_prefix(kind).is_some_and(|rest| rest.starts_with('-')) {
                self.only.push((kind, key.clone()));
            }
        }
        Ok(())
    }

    fn volume(&self, kind: &str, target: &str) -> Result<RequestVolume, String> {
        let source = match (kind, self.source.as_deref().filter(|source| !source.is_empty())) {
            ("bind", None) => return Err("type=bind needs a source".to_owned()),
            (_, source) => VolumeSource::parse(source).map_err(|error| error.to_string())?,
        };
        let source = match source {
            VolumeSource::Bind { path, .. } if kind == "bind" => {
                VolumeSource::Bind { path, create: false }
            }
            source @ (VolumeSource::Named(_) | VolumeSource::Anonymous) if kind == "volume" => {
                source
            }
            _ => {
                let expected =
                    if kind == "bind" { "an absolute path" } else { "the name of a volume" };
                return Err(format!("the source does not fit type={kind}: expected {expected}"));
            }
        };
        let volume = RequestVolume::new(source, target).map_err(|error| error.to_string())?;
        Ok(RequestVolume {
            read_only: self.read_only,
            recursive: !self.not_recursive,
            propagation: self.propagation,
            copy: !self.no_copy,
            ..volume
        })
    }
}
