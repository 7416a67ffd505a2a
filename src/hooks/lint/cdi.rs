//! Vendors' hooks for devices that the Container Device Interface (CDI) has replaced.

use super::fields::Fields;
use super::rules;
use super::sink::Sink;
use crate::json::Value;

/// A vendor's hook.
struct VendorHook {
    vendor: &'static str,
    /// The names that its program has had.
    programs: &'static [&'static str],
    /// What replaces it.
    instead: &'static str,
}

/// Only those whose replacement their vendor documents. AMD never had one.
const HOOKS: [VendorHook; 2] = [
    VendorHook {
        vendor: "NVIDIA",
        programs: &[
            "nvidia-container-runtime-hook",
            "nvidia-container-toolkit",
            "nvidia-container-cli",
        ],
        instead: "run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, start containers with \
                  `--device nvidia.com/gpu=all`, and disable this hook",
    },
    VendorHook {
        vendor: "Intel",
        programs: &["intel-fpga-crihook", "fpga_crihook"],
        instead: "update the FPGA device plugin, which passes its hook to the engine by CDI since 0.31, and \
                  disable this hook",
    },
];

/// Looks for the program of a vendor, also behind a shell or `env`.
pub(super) fn check(fields: &Fields<'_>, sink: &mut Sink<'_>) {
    if fields.is_mask() {
        return;
    }
    let args = fields.args.iter().flat_map(|list| list.items.iter().copied());
    for value in fields.path.into_iter().chain(args) {
        let Some(hook) = vendor_hook(value) else { continue };
        let message = format!("{}'s hook for devices has been replaced by CDI", hook.vendor);
        sink.at(&rules::REPLACED_BY_CDI, value, message).help(hook.instead);
        return;
    }
}

fn vendor_hook(value: Value<'_>) -> Option<&'static VendorHook> {
    let text = value.as_str()?;
    let mut words = text.split_whitespace();
    words.find_map(|word| {
        let name = word.rsplit('/').next().unwrap_or_default();
        let name = name.strip_suffix(".real").unwrap_or(name);
        HOOKS.iter().find(|hook| hook.programs.contains(&name))
    })
}
