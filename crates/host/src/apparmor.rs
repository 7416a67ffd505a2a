//! Detects whether AppArmor is enabled. `container-hook` calls it before it applies a profile; this
//! module loads no profile.

use std::fs;

/// Returns whether AppArmor is enabled in the kernel.
pub fn is_enabled() -> bool {
    fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|on| on.trim() == "Y")
}
