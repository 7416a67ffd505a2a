//! Options about capabilities, security and namespaces.

use super::CreateOptions;
use super::create_options::{HostNamespace, IpcMode};
use super::value::boolean;

pub(super) fn cap_add(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    insert(&mut options.security.cap_add, capability(value)?);
    Ok(())
}

pub(super) fn cap_drop(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    insert(&mut options.security.cap_drop, capability(value)?);
    Ok(())
}

fn insert(list: &mut Vec<String>, name: String) {
    if !list.contains(&name) {
        list.push(name);
    }
}

/// Returns the kernel's spelling of a capability. Unknown names are rejected later.
pub fn capability(name: &str) -> Result<String, String> {
    let upper = name.trim().to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    if bare.is_empty() || !bare.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err("must be a capability such as NET_ADMIN, or ALL".to_owned());
    }
    Ok(if bare == "ALL" { bare.to_owned() } else { format!("CAP_{bare}") })
}

pub(super) fn security_opt(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    let security = &mut options.security;
    // The older form has a colon.
    match (value, value.split_once('=').or_else(|| value.split_once(':'))) {
        ("no-new-privileges", _) => security.no_new_privileges = Some(true),
        (_, Some(("no-new-privileges", text))) => {
            security.no_new_privileges = Some(boolean(text)?);
        }
        (_, Some(("seccomp", "unconfined"))) => security.seccomp_unconfined = true,
        (_, Some(("seccomp", "builtin"))) => security.seccomp_unconfined = false,
        (_, Some(("seccomp", _))) => {
            return Err(
                "the profile would be read from the runner's machine; use `unconfined`, or \
                        leave the option out"
                    .to_owned(),
            );
        }
        (_, Some(("apparmor", profile))) => security.apparmor = Some(profile.to_owned()),
        // Containers have no SELinux label.
        (_, Some(("label", "disable"))) => {}
        (_, Some(("systempaths", "unconfined"))) => security.system_paths_unconfined = true,
        _ => {
            return Err("must be no-new-privileges, seccomp=unconfined, apparmor=PROFILE, \
                        label=disable or systempaths=unconfined"
                .to_owned());
        }
    }
    Ok(())
}

pub(super) fn pid(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    namespace(options, HostNamespace::Pid, value, &[""])
}

pub(super) fn uts(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    namespace(options, HostNamespace::Uts, value, &[""])
}

pub(super) fn user(_options: &mut CreateOptions, value: &str) -> Result<(), String> {
    match value {
        "" | "host" => Ok(()),
        _ => Err("must be host: the admin's settings choose the user namespace".to_owned()),
    }
}

pub(super) fn cgroup(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    namespace(options, HostNamespace::Cgroup, value, &["", "private"])
}

pub(super) fn ipc(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    namespace(options, HostNamespace::Ipc, value, &["", "private", "shareable", "none"])?;
    options.ipc = if value == "none" { IpcMode::None } else { IpcMode::Private };
    Ok(())
}

fn namespace(
    options: &mut CreateOptions,
    namespace: HostNamespace,
    value: &str,
    own: &[&str],
) -> Result<(), String> {
    if value == "host" {
        options.host_namespaces.insert(namespace);
    } else if own.contains(&value) {
        options.host_namespaces.remove(&namespace);
    } else if value.starts_with("container:") {
        return Err("sharing a namespace with another container is not supported".to_owned());
    } else {
        let own: Vec<_> = own.iter().filter(|name| !name.is_empty()).copied().collect();
        return Err(format!("must be {}", [own.as_slice(), &["host"]].concat().join(" or ")));
    }
    Ok(())
}
