//! Devices of the [Container Device Interface] (CDI): specifications in `/etc/cdi` and `/var/run/cdi`, and the edits of
//! `config.json` that give a container a device, among them hooks.
//!
//! The rules are those of the Go package that podman, CRI-O and containerd use: [`DeviceRegistry`]
//! reads the directories, and a [`DeviceSelection`] edits the text of a configuration and preserves
//! everything else.
//!
//! ```
//! use oci_hooks::cdi::DeviceRegistry;
//! use oci_hooks::hooks::trust::TrustOptions;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let lamp = r#"{"name": "red", "containerEdits": {"env": ["LAMP=red"]}}"#;
//! # let text = format!(r#"{{"cdiVersion": "0.5.0", "kind": "vendor.com/lamp", "devices": [{lamp}]}}"#);
//! # std::fs::write(dir.path().join("a.json"), text)?;
//! # let dirs = [dir.path().to_owned()];
//! let registry = DeviceRegistry::load(&dirs);
//! let selection = registry.select(&["vendor.com/lamp=red".to_owned()])?;
//! // Fails if other users can change a specification.
//! let is_trusted = selection.check_trust(&TrustOptions::of_process()).is_ok();
//! # let _ = is_trusted;
//! assert_eq!(selection.apply(br#"{"process":{"env":[]}}"#)?, br#"{"process":{"env":["LAMP=red"]}}"#);
//! # Ok(())
//! # }
//! ```
//!
//! [Container Device Interface]: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md

mod edit;
mod load;
mod read;
mod spec;
#[cfg(test)]
mod tests;

pub use load::{
    DEFAULT_DIRS, DeviceEntry, DeviceError, DeviceProblem, DeviceRegistry, DeviceSelection,
    is_spec_name,
};
pub use read::CdiSpecError;
pub use spec::{
    CdiSpec, ContainerEdits, DeviceDefinition, DeviceHook, DeviceMount, DeviceNode, IntelRdt,
    NetDevice, is_device_name,
};
