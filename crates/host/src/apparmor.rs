//! Detects whether AppArmor is enabled. It loads no profile: `container-hook` asks before it applies one.

use std::fs;

/// Returns whether AppArmor is enabled in the kernel.
pub fn is_enabled() -> bool {
    fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|on| on.trim() == "Y")
}
