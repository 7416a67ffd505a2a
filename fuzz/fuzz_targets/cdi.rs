//! From the bytes of a CDI specification and of a configuration to a new configuration.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oci_hooks::cdi::{DeviceSelection, CdiSpec, is_device_name};
use oci_hooks::hooks::ConfigDocument;

/// Members of a configuration that devices change.
const CHANGED: [&str; 4] = ["hooks", "linux", "mounts", "process"];

// A specification and a configuration, separated by a zero byte.
fuzz_target!(|input: &[u8]| {
    let at = input.iter().position(|&byte| byte == 0).unwrap_or(input.len());
    let (spec, config) = (&input[..at], input.get(at + 1..).unwrap_or_default());
    let spec = match CdiSpec::parse(spec) {
        Ok(spec) => spec,
        Err(error) => {
            let _ = (error.to_string(), error.position());
            return;
        }
    };
    for edits in spec.devices.iter().map(|device| &device.container_edits).chain([&spec.container_edits]) {
        let mut selection = DeviceSelection::default();
        selection.edits = edits.clone();
        let Ok(text) = selection.apply(config) else { continue };
        let old = ConfigDocument::parse(config).expect("an invalid configuration is rejected");
        let new = ConfigDocument::parse(&text).expect("the new configuration is JSON");
        assert!(others(&old).eq(others(&new)), "something else has changed");
    }
    for device in &spec.devices {
        assert!(is_device_name(&format!("{}={}", spec.kind, device.name)));
    }
});

/// Returns the members that devices do not change, as bytes.
fn others<'d>(config: &'d ConfigDocument<'_>) -> impl Iterator<Item = [&'d [u8]; 2]> {
    let members = config.document().root().members();
    let others = members.filter(|member| !CHANGED.iter().any(|name| member.is_named(name)));
    others.map(|member| [member.key.raw(), member.value.raw()])
}
