//! Parts of requests, as the runner sends them.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

/// Returns a container of an image with nothing else said, which is a service as it is sent.
pub(crate) fn container(image: &str) -> Value {
    json!({
        "image": image, "dockerfile": null, "entryPointArgs": [], "entryPoint": null,
        "workingDirectory": null, "createOptions": null, "registry": null,
        "environmentVariables": {}, "portMappings": [], "systemMountVolumes": [],
        "userMountVolumes": [],
    })
}

/// Returns an object with some fields changed.
pub(crate) fn merge(mut object: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else { panic!("{fields} is no object") };
    for (name, value) in fields {
        object[name] = value;
    }
    object
}

/// Returns a mount as the runner sends those of its own.
pub(crate) fn mount(source: impl AsRef<Path>, target: &str, read_only: bool) -> Value {
    json!({
        "userProvidedValue": null, "sourceVolumePath": source.as_ref(),
        "targetVolumePath": target, "readOnly": read_only,
    })
}

/// Returns a volume as the runner sends those of `volumes:`.
pub(crate) fn volume(source: &str, target: &str, read_only: bool) -> Value {
    let ro = if read_only { ":ro" } else { "" };
    merge(
        mount(source, target, read_only),
        json!({"userProvidedValue": format!("{source}:{target}{ro}")}),
    )
}

/// Returns a new identifier in the form that the runner uses.
pub(crate) fn guid() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{:08x}-0000-4000-8000-{number:012x}", std::process::id())
}
